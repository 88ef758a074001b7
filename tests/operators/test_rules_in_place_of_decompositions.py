"""What capture does not write out itself, as rules of passes or PyTorch's own decomposition hold it, beside eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.pipeline import pass_context, run_passes, stage_passes
from lowerkit.program.dtypes import to_numpy

Function = Callable[..., Any]
HARD = torch.tensor([[0.0, -0.0, math.inf, -math.inf, math.nan, 90.0, -90.0], [1e-30, 3e38, -1.0, 0.5, 1.0, 2.0, 3.0]])
WHOLE = torch.arange(-7, 7, dtype=torch.int32).reshape(2, 7)
BYTES = torch.arange(121, 135, dtype=torch.uint8).reshape(2, 7)


class _Calls(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: Tensor) -> Any:
        return self.function(*values)


def agrees(function: Function, *samples: tuple[Tensor, ...], dims: Any = None) -> None:
    """Compares the interpreter after raising with eager; what is exported are the first arguments."""
    module = _Calls(function)
    shapes = None if dims is None else (tuple(dims for _ in samples[0]),)
    program = capture_exported(torch.export.export(module, samples[0], dynamic_shapes=shapes, strict=False))
    run_passes(program, stage_passes("raised"), pass_context(program))
    for values in samples:
        given = [to_numpy(value.view(torch.int8) if value.dtype is torch.uint8 else value) for value in values]
        found = interpret(program.module, given, program.weights.get)
        wanted = module(*values)
        for one, expected in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            other = expected.view(torch.int8) if expected.dtype is torch.uint8 else expected
            torch.testing.assert_close(torch.from_numpy(one.copy()), other, rtol=1e-6, atol=1e-7, equal_nan=True)


def of_losses(name: str, **named: Any) -> Function:
    return lambda x, y: getattr(functional, name)(x, y, **named)


PAIRS: dict[str, Function] = {
    "isclose": lambda x, y: torch.isclose(x, y, 0.1, 0.01),
    "isclose, NaN": lambda x, y: torch.isclose(x, y, equal_nan=True),
    **{f"l1 {kind}": of_losses("l1_loss", reduction=kind) for kind in ("none", "sum")},
    **{f"mse {kind}": of_losses("mse_loss", reduction=kind) for kind in ("none", "sum")},
    "kl_div": of_losses("kl_div", reduction="none"),
    "kl_div of logarithms": of_losses("kl_div", reduction="none", log_target=True),
    "cross entropy": of_losses("binary_cross_entropy_with_logits", reduction="none"),
    "weighted": lambda x, y: functional.binary_cross_entropy_with_logits(
        x, y, y.abs(), reduction="none", pos_weight=y * y
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    agrees(PAIRS[name], (HARD, HARD.flip(1)), (HARD, HARD))


BITS: dict[str, Function] = {
    "or": lambda x: x | 300,
    "xor": lambda x: x ^ -3,
    "or of a bool": lambda x: (x > 0) | True,
    "xor of a bool": lambda x: (x > 0) ^ 5,
    "fill": lambda x: torch.fill(x, 3.7),
    "isclose": lambda x: torch.isclose(x, x.flip(1), 0.3, 1.0),
    "isclose of bools": lambda x: torch.isclose(x > 0, x.flip(1) > 0),
}


@pytest.mark.parametrize("value", [WHOLE, BYTES], ids=["si32", "ui8"])
@pytest.mark.parametrize("name", BITS)
def test_integers(name: str, value: Tensor) -> None:
    agrees(BITS[name], (value,))


OPEN: dict[str, Function] = {
    "squeeze": lambda x: x.unsqueeze(1).unsqueeze(0).squeeze((0, 2)),
    "last of a dim": lambda x: torch.select_scatter(x, x[:, 0], 1, -1),
    "diagonal": lambda x: torch.diagonal_scatter(x, x.diagonal(1) + 1, 1),
    "variance": lambda x: (x.var(1), x.var(0, correction=0), x.var(), x.var(1, keepdim=True)),
    "deviation": lambda x: (*torch.std_mean(x, 1), *torch.std_mean(x), x.std(0, correction=3)),
    "variance and mean": lambda x: torch.var_mean(x, 0, keepdim=True),
    "doubles": lambda x: torch.var_mean(x.double(), 1, correction=2),
    "halves": lambda x: x.half().var(1).float(),
    "no choice": lambda x: torch.where(x > 0, x[:, :1], x[:, :1]),
    "no choice of numbers": lambda x: (torch.where(x > 0, -2.0, -2.0), torch.where(x > 0, -0.0, 0.0)),
    "norm": lambda x: torch.ops.aten.norm.Scalar(x, 3),
    "cut and padded": lambda x: functional.pad(x, (-2, 1, 2, -1), value=-2.5),
    "unshuffled": lambda x: functional.pixel_unshuffle(x.repeat(1, 2, 2), 2),
}


@pytest.mark.parametrize("is_open", [False, True], ids=["static", "open"])
@pytest.mark.parametrize("name", OPEN)
def test_extents(name: str, is_open: bool) -> None:
    shapes = [(8, 6), (6, 9), (12, 7)] if is_open else [(8, 6)]
    generator = torch.Generator().manual_seed(0)
    lead = (1,) if name == "unshuffled" else ()
    samples = [(torch.randn(*lead, *shape, generator=generator),) for shape in shapes]
    axes = range(len(lead), len(lead) + 2)
    agrees(OPEN[name], *samples, dims={axis: Dim(f"d{axis}", min=5, max=99) for axis in axes} if is_open else None)


SCALARS: dict[str, Function] = {
    "extremes": lambda x: (x.amax(), x.amin(0), *x.max(0), *x.min(-1), x.argmax(), x.argmin(0)),
    "order": lambda x: (*x.sort(), *torch.sort(x, stable=True), x.argsort(), *x.topk(1)),
    "running": lambda x: (x.cumsum(0), x.cumprod(-1), x.cumsum(0, dtype=torch.float64)),
    "counts": lambda x: (x.count_nonzero(), x.count_nonzero(0), x.any(), x.all()),
    "looked up": lambda x: (torch.gather(x, 0, torch.zeros(3, dtype=torch.int64)),),
    "logarithm": lambda x: (torch.logsumexp(x, 0), torch.logsumexp(x, 0, True)),
}


@pytest.mark.parametrize("value", [1.5, math.nan, math.inf, -3, 200], ids=str)
@pytest.mark.parametrize("name", SCALARS)
def test_scalars(name: str, value: float) -> None:
    agrees(SCALARS[name], (torch.tensor(value, dtype=torch.uint8 if value == 200 else None),))


def test_a_bool() -> None:
    agrees(lambda x: (x.amax(), *x.max(0), *x.sort(), x.argsort(), x.cumsum(0), x.any()), (torch.tensor(True),))


def test_determinants() -> None:
    def both(a: Tensor) -> tuple[Tensor, ...]:
        return torch.det(a), torch.linalg.det(a), *torch.slogdet(a), *torch.linalg.slogdet(a), torch.logdet(a)

    agrees(both, (torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(1)).double(),))
