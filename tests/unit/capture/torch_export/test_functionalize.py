"""Rewriting a graph gives the values that tracing it again gives, and refuses what it does not see through."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.capture.torch_export.graph.functionalize import rewritten
from tests.support.models import benchmark_models
from tests.unit.capture.running import assert_same_as_eager

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)


class Calls(nn.Module):
    state: torch.Tensor

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.ones(4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def in_place(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    before = y + 1
    y.add_(3).relu_()
    return before + y


def in_place_last(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.mul_(y)
    return y


def layouts(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.transpose(1, 2).contiguous().reshape(2, -1)
    return y.flatten().unflatten(0, (4, 6)).to(torch.float32).to(torch.float64).detach()


def of_a_view(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1].add_(5)
    return y


def viewed_before(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    row = y[0]
    y.add_(5)
    return row + 1


def through_contiguous(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.transpose(0, 2) * 2
    copied = y.contiguous()
    y.add_(5)
    return copied + y


def of_a_buffer(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.state.add_(1)
    return x + module.state


def copied_into(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(2, 3, 4)
    y[:, :, :2] = x[:, :, 2:]
    return y


def composite_view(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x.movedim(0, 2).narrow(0, 1, 2)


def constant_layouts(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A table that depends on no input is computed at capture, where a reshape of a permuted tensor is a copy."""
    table = torch.arange(12).reshape(3, 4).permute(1, 0).reshape(12)
    return x + table.reshape(3, 4)


def dropped(_: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5, training=False, inplace=True) * 1


def returned_as_it_is(_: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + 1
    return y.contiguous(), y


@pytest.mark.parametrize(
    "function",
    [in_place, in_place_last, layouts, constant_layouts, dropped, returned_as_it_is],
    ids=lambda f: f.__name__,
)
def test_rewritten(function: Callable[..., Any]) -> None:
    exported = torch.export.export(Calls(function).eval(), (X,), strict=False)
    before = str(exported.graph)
    program = rewritten(exported)
    assert program is not None
    assert str(exported.graph) == before
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable
    assert_same_as_eager(capture(exported), [X.numpy()])


@pytest.mark.parametrize(
    "function",
    [of_a_view, viewed_before, through_contiguous, of_a_buffer, copied_into, composite_view],
    ids=lambda f: f.__name__,
)
def test_left_to_torch(function: Callable[..., Any]) -> None:
    exported = torch.export.export(Calls(function).eval(), (X,), strict=False)
    assert rewritten(exported) is None
    if function is not of_a_buffer:
        assert_same_as_eager(capture(exported), [X.numpy()])


def test_symbolic_dims_and_training_are_left_to_torch() -> None:
    shapes = ({0: torch.export.Dim("n")},)
    assert rewritten(torch.export.export(nn.ReLU(), (X,), dynamic_shapes=shapes, strict=False)) is None
    assert rewritten(torch.export.export(nn.Dropout(), (X,), strict=False)) is None
    assert rewritten(torch.export.export(nn.BatchNorm1d(3), (X,), strict=False)) is None


def strided(value: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(value, (3, 2), (2, 1), 1)


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda x: x.transpose(0, 2).contiguous(),
        lambda x: x[:, 1:].contiguous(),
        lambda x: x[:, :1].expand(2, 3, 4).contiguous(),
        lambda x: x.unsqueeze(0).to(memory_format=torch.channels_last),
        lambda x: x.unsqueeze(0).clone(memory_format=torch.channels_last).contiguous(),
        lambda x: x.transpose(0, 2).reshape(-1),
        lambda x: x.transpose(0, 2).flatten(),
        lambda x: x.transpose(0, 2),
        lambda x: x[1:],
    ],
)
def test_as_strided_reads_the_memory_that_a_copy_laid_out(lay_out: Callable[..., torch.Tensor]) -> None:
    model = Calls(lambda _, x: strided(lay_out(x))).eval()
    assert_same_as_eager(capture(model, (X,)), [X.numpy()])


@pytest.mark.parametrize("name", benchmark_models().NAMES)
def test_the_benchmark_models_need_no_second_trace(name: str) -> None:
    module, inputs = benchmark_models().tiny(name)
    with torch.no_grad():
        assert rewritten(torch.export.export(module, inputs, strict=False)) is not None
