"""Graphs without gradients: values, structure, memory and strides of what is returned are eager's."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes.session import Session
from tests.support.torch_backend.beside_eager import assert_as_eager, assert_same, compiled, graphs, programs


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor | None


@dataclass
class Result:
    logits: torch.Tensor
    cache: list[torch.Tensor]


RETURNED: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x + 1,
    "tuple with None": lambda x: (x + 1, None, x * 2),
    "nested": lambda x: {"a": [x + 1, (x - 1, 3, "text")], "b": None},
    "named tuple": lambda x: Pair(x.sum(0), None),
    "dataclass": lambda x: Result(x @ x.T, [x * 2]),
    "input itself": lambda x: (x, x + 1),
    "twice the same": lambda x: (y := x + 1, y),
    "view of the input": lambda x: (x[1:], x.T, x.view(-1)),
    "view of a result": lambda x: (x + 1).T,
    "views of one result": lambda x: ((y := x * 2)[0], y[1:], y),
    "expanded": lambda x: (x + 1)[:1].expand(5, 4),
    "strided": lambda x: (x + 1)[:, ::2],
    "split": lambda x: torch.split(x * 2, 2),
    "no tensor": lambda x: x.shape[0] + 2,
    "dtypes": lambda x: (x > 0, x.long(), x.bfloat16(), x.half(), x.double(), x.to(torch.uint8), x.argmax()),
    "rank 0": lambda x: x.sum(),
    "no elements": lambda x: x[:0] + 1,
    "constant": lambda x: (torch.arange(4), torch.ones(2, 2) + x[:2, :2]),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_returned(name: str) -> None:
    with torch.no_grad():
        assert_as_eager(RETURNED[name], torch.rand(4, 4), calls=2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes(mode: Callable[[], Any]) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    fast, x = compiled(module), torch.randn(2, 3, 8, 8)
    with mode():
        for _ in range(2):
            actual, expected = fast(x), module(x)
            assert actual.is_inference() == expected.is_inference()
            assert_same(actual, expected)
    assert graphs() == 1


def test_results_share_memory_as_eager_s() -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x[1:], y, y[0]

    x = torch.rand(3, 4)
    with torch.no_grad():
        of_input, result, of_result = compiled(views)(x)
    of_input += 1
    assert torch.equal(of_input, x[1:])
    result[0] += 5
    assert torch.equal(of_result, result[0])


def test_results_are_not_overwritten_by_the_next_call() -> None:
    fast = compiled(lambda x: x * 2)
    first = fast(torch.ones(3))
    second = fast(torch.zeros(3))
    assert first.tolist() == [2, 2, 2] and second.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(4, 6).T,
        torch.rand(8, 12)[::2, ::2],
        torch.rand(1, 6).expand(4, 6),
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.view_as_complex(torch.rand(4, 6, 2)).conj().imag,
        torch.rand(4, 6, requires_grad=True).detach(),
    ],
    ids=["transposed", "steps", "expanded", "channels last", "negated lazily", "detached"],
)
def test_inputs_of_any_strides(x: torch.Tensor) -> None:
    fast = compiled(lambda x: torch.softmax(x * 2, -1) + x.sum())
    torch.testing.assert_close(fast(x), torch.softmax(x * 2, -1) + x.sum())


def test_keywords_scalars_and_nested_arguments() -> None:
    def forward(x: torch.Tensor, *more: Any, scale: float = 1.0, extra: dict[str, Any] | None = None) -> torch.Tensor:
        for tensor, factor in more:
            x = x + tensor * factor
        return x * scale + (extra["bias"] if extra else 0)

    fast = compiled(forward)
    x, y = torch.rand(3, 4), torch.rand(4)
    with torch.no_grad():
        for scale, factor in ((1.0, 2), (0.5, 3), (0.25, 4), (2.0, -1)):
            for extra in (None, {"bias": y}):
                arguments: dict[str, Any] = {"scale": scale, "extra": extra}
                torch.testing.assert_close(fast(x, (y, factor), **arguments), forward(x, (y, factor), **arguments))


def test_a_state_is_written_as_eager_writes_it() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys = nn.Buffer(torch.zeros(2, 4, 3))
            self.position = nn.Buffer(torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.keys.index_copy_(1, self.position[None], x[:, None])
            self.position.add_(1)
            return self.keys.sum(1)

    ours = Cache()
    theirs, fast = copy.deepcopy(ours), compiled(ours)
    with torch.no_grad():
        for _ in range(3):
            x = torch.rand(2, 3)
            assert_same(fast(x), theirs(x))
            assert_same(ours.state_dict(), theirs.state_dict())


def test_an_input_that_is_changed_in_place() -> None:
    def change(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[:, 1:3].mul_(y)
        z.t_()
        return x + 1

    with torch.no_grad():
        assert_as_eager(change, torch.rand(4, 4), torch.rand(4, 2), torch.rand(3, 3), calls=2)


def test_threads_share_a_compiled_model() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    fast, problems = compiled(module), list[BaseException]()
    with torch.no_grad():
        fast(torch.zeros(3, 16))

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        try:
            with torch.no_grad():
                for _ in range(20):
                    x = torch.randn(3, 16, generator=generator)
                    torch.testing.assert_close(fast(x), module(x))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert programs() == 1


def test_sizes_that_a_program_does_not_hold_for_run_in_pytorch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session: Session, *inputs: Any) -> list[Any]:
        if inputs[0].shape[0] == 5:
            raise RuntimeFault("LK8004", "the arguments do not fit the signature", details=["x is 5"])
        return kept(session, *inputs)

    kept = Session.run
    monkeypatch.setattr(Session, "run", refuse)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU()).eval()
    fast = compiled(module)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "lowerkit"):
        for batch in (2, 3, 5):
            x = torch.rand(batch, 4)
            torch.testing.assert_close(fast(x), module(x))
    (line,) = [record.message for record in caplog.records if record.name == "lowerkit.torch_backend"]
    assert line.startswith("PyTorch runs 2 ops, first aten.linear.default") and "[LK8004]: x is 5" in line


def test_an_encoder_layer_is_compiled_although_pytorch_has_one_op_for_it() -> None:
    for first, activation, mask in (
        (True, "gelu", None),
        (False, "relu", torch.ones(5, 5, dtype=torch.bool).triu(1)),
        (False, "gelu", torch.tensor([[False] * 5, [False] * 3 + [True] * 2])),
    ):
        layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=first, activation=activation, batch_first=True).eval()
        named = {} if mask is None else {"src_mask" if mask.shape == (5, 5) else "src_key_padding_mask": mask}
        fast, x = compiled(layer, on_refusal="error"), torch.randn(2, 5, 8)
        with torch.no_grad():
            torch.testing.assert_close(fast(x, **named), layer(x, **named), rtol=1e-5, atol=1e-5)
        assert programs() == 1
