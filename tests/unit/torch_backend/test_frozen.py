"""Parameters are packed at compile time, and every change of them shows in the next call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lowerkit.torch_backend.frozen import SAMPLES, FrozenInputs, can_be_frozen
from tests.support.torch_backend.beside_eager import compiled, graphs


def model() -> Any:
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4)).eval()


def replace(module: Any) -> None:
    module[0].weight = nn.Parameter(torch.randn(32, 16))


def load(module: Any) -> None:
    state = module.state_dict()
    module.load_state_dict({name: torch.rand_like(v) if v.is_floating_point() else v for name, v in state.items()})


def assign(module: Any) -> None:
    state = {name: value.clone() for name, value in module.state_dict().items()}
    state["3.bias"] += 1
    module.load_state_dict(state, assign=True)


def step(module: Any) -> None:
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(module.parameters(), lr=0.1).step()


def through_numpy(module: Any) -> None:
    module[0].weight.detach().numpy()[...] *= 2


CHANGES: dict[str, Callable[[Any], object]] = {
    "in place": lambda module: module[3].bias.add_(1),
    "one element": lambda module: module[0].weight[3, 5].fill_(9),
    "a buffer": lambda module: module[1].running_mean.add_(1),
    "load_state_dict": load,
    "load_state_dict by assignment": assign,
    "another parameter": replace,
    "other data": lambda module: setattr(module[0].weight, "data", torch.randn(32, 16)),
    "through .data": lambda module: module[0].weight.data.mul_(2),
    "through numpy": through_numpy,
    "an optimizer": step,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_shows_in_the_next_call(name: str) -> None:
    module, x = model(), torch.randn(3, 16)
    fast = compiled(module)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
        before = module(x)
        CHANGES[name](module)
        assert not torch.equal(module(x), before)
        for _ in range(2):
            torch.testing.assert_close(fast(x), module(x))
    assert graphs() == 2


def test_parameters_that_change_often_are_read_at_each_call(caplog: pytest.LogCaptureFixture) -> None:
    module, x = model(), torch.randn(3, 16)
    fast = compiled(module)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "lowerkit"):
        for _ in range(6):
            torch.testing.assert_close(fast(x), module(x))
            load(module)
    assert graphs() == 3
    lines = [record.message for record in caplog.records if record.name == "lowerkit.torch_backend"]
    assert len(lines) == 2 and "compiled anew" in lines[0] and "each call reads them" in lines[1]


def test_one_changed_parameter_is_named_alone(caplog: pytest.LogCaptureFixture) -> None:
    module, x = model(), torch.randn(3, 16)
    fast = compiled(module)
    name, parameter = next(module.named_parameters())
    with torch.no_grad(), caplog.at_level(logging.WARNING, "lowerkit"):
        fast(x)
        parameter.mul_(2)
        torch.testing.assert_close(fast(x), module(x))
    (line,) = [record.message for record in caplog.records if record.name == "lowerkit.torch_backend"]
    assert line == f"a parameter has changed ({name}): the graph is compiled anew"


def test_without_freezing_nothing_is_packed() -> None:
    module, x = model(), torch.randn(3, 16)
    fast = compiled(module, freeze=False)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), module(x))
            module[0].weight.detach().numpy()[1, 1] += 1
    assert graphs() == 1


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (SAMPLES,), (1000,), (7, 100), (3, 3, 64, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_samples_see_a_write_to_all_elements(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    node = torch.fx.Graph().placeholder("x")
    frozen = FrozenInputs({node: tensor})
    assert not frozen.changed({node: tensor})
    tensor.data.zero_()
    assert bool(frozen.changed({node: tensor})) == (tensor.numel() > 0)


def test_what_cannot_be_watched_is_not_packed() -> None:
    with torch.inference_mode():
        made_here = torch.ones(2)
    assert not can_be_frozen(made_here)
    assert not can_be_frozen(torch.ones(2, dtype=torch.complex64))
    assert not can_be_frozen(torch.ones(2, device="meta"))
    assert can_be_frozen(nn.Parameter(torch.ones(2)))
