"""Every small function of ``torch_cases`` compiled as an artifact would be, against eager by gate A.

``tests/unit/passes/test_raise_parity.py`` interprets the same functions right after raising; here their kernels run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import lowerkit
from tests.support.torch_cases import Case, cases


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: torch.Tensor) -> Any:
        return self.function(*arguments)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_compiled_function_computes_what_eager_does(case: Case) -> None:
    report = lowerkit.check(Function(case.function).eval(), case.arguments, per_op=False)
    assert report.outputs
    assert report.passed, [row.verdict.reason for row in report.outputs if not row.verdict.passed]


@pytest.mark.parametrize("pads", [(0, 0, 1, -1), (1, -1), (-1, 2), (-2, -1), (2, -1, -1, 3), (-7, 9)])
def test_negative_padding_cuts(pads: tuple[int, ...]) -> None:
    x = torch.randn(2, 5, 9)
    compiled = lowerkit.compile(Function(lambda x: torch.nn.functional.pad(x, pads, value=2.5)).eval(), (x,))
    np.testing.assert_array_equal(compiled(x), torch.nn.functional.pad(x, pads, value=2.5).numpy())


@pytest.mark.parametrize("pads", [(-1, 1, -2, 1), (0, 0, -2, 1), (2, -1, 0, 0), (-2, 2, 1, -3)])
def test_circular_padding_repeats_what_is_left(pads: tuple[int, ...]) -> None:
    x = torch.randn(1, 2, 4, 4)
    compiled = lowerkit.compile(Function(lambda x: torch.nn.functional.pad(x, pads, "circular")).eval(), (x,))
    np.testing.assert_array_equal(compiled(x), torch.nn.functional.pad(x, pads, "circular").numpy())


DIVISIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor": lambda x, y: x // y,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8], ids=str)
@pytest.mark.parametrize("division", DIVISIONS)
def test_division_by_zero_and_by_minus_one_does_not_trap(division: str, dtype: torch.dtype) -> None:
    """By 0 the quotient is 0 and the remainder x, where eager raises an error; all else is as eager's."""
    function = DIVISIONS[division]
    smallest = torch.iinfo(dtype).min
    x = torch.tensor([7, 0, smallest, smallest, 5, 9, 100], dtype=dtype)
    y = torch.tensor([0, 0, 1, 2, 3, 4, 7], dtype=dtype)
    safe = y.clone()
    safe[y == 0] = 1
    expected = function(x, safe)
    quotient = division in ("floor", "trunc")
    expected[y == 0] = 0 if quotient else x[y == 0]
    compiled = lowerkit.compile(Function(function).eval(), (x, safe))
    np.testing.assert_array_equal(compiled(x, y), expected.numpy())
    by_minus_one = np.negative(x.numpy()) if quotient else np.zeros_like(x.numpy())
    np.testing.assert_array_equal(compiled(x, torch.full_like(x, -1)), by_minus_one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [torch.maximum, torch.minimum])
def test_a_nan_on_either_side_is_kept(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    nan = float("nan")
    x, y = (
        torch.tensor(values, dtype=dtype) for values in ([nan, 1, nan, 2, nan, float("inf")], [1, nan, nan, 3, -4, nan])
    )
    compiled = lowerkit.compile(Function(function).eval(), (x, y))
    np.testing.assert_array_equal(compiled(x, y).astype(np.float32), function(x, y).float().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_sine_and_the_cosine_of_one_value(dtype: torch.dtype) -> None:
    """LLVM makes one call of both, which the runtime offers."""
    x = torch.linspace(-40, 40, 77, dtype=dtype)
    function = torch.special.shifted_chebyshev_polynomial_w
    compiled = lowerkit.compile(Function(lambda x: function(x / 50, x / 50)).eval(), (x,))
    torch.testing.assert_close(torch.from_numpy(compiled(x)), function(x / 50, x / 50), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_norm_of_all_elements_beside_a_list_of_tensors(dtype: torch.dtype) -> None:
    x, y = torch.randn(3, 5).to(dtype), torch.randn(5).to(dtype)

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.dist(x, y, 4), torch.add(*torch.broadcast_tensors(x, y))

    report = lowerkit.check(Function(function).eval(), (x, y), per_op=False)
    assert report.passed, [row.verdict.reason for row in report.outputs if not row.verdict.passed]
