"""Every small function of ``torch_cases`` against eager: interpreted after raising, and compiled.

A function is captured once: both tests take copies of the captured program.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import lowerkit
from lowerkit.capture.torch_export.capture import capture_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.parity.check import check_program
from lowerkit.passes.base import PassContext
from lowerkit.pipeline import stage_passes
from lowerkit.program.dtypes import to_numpy
from lowerkit.program.program import Program
from tests.support.torch_cases import Case, cases

_TOLERANCES: dict[Any, tuple[float, float]] = {
    np.dtype(np.float64): (1e-7, 1e-7),
    np.dtype(np.float32): (1.3e-6, 1e-5),
    np.dtype(np.float16): (1e-3, 1e-5),
    np.dtype(ml_dtypes.bfloat16): (1.6e-2, 1e-5),
}
"""rtol and atol of gate A per op; integers and bools are equal."""

_FLOAT64_ATTRIBUTES = re.compile(r"(epsilon|scale|fill) = [^,}]* : f64|scales = array<f64[^>]*>")
_FORBIDDEN = ("torch.", "torch_c.", "tm_tensor.", "cf.assert", "tensor.cast", "scf.")


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: torch.Tensor) -> Any:
        return self.function(*arguments)


@dataclass(frozen=True)
class Captured:
    """A function and its captured program, which is not to be lowered itself."""

    case: Case
    program: Program


@pytest.fixture(scope="module", params=cases(), ids=lambda case: case.name)
def captured(request: pytest.FixtureRequest) -> Captured:
    case: Case = request.param
    return Captured(case, capture_module(Function(case.function).eval(), case.arguments))


def _flat(outputs: Any) -> list[torch.Tensor]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def test_raised_function_computes_what_eager_does(captured: Captured) -> None:
    case, program = captured.case, captured.program.copy()
    before = program.text()
    context = PassContext(weights=program.weights)
    for one_pass in stage_passes("raised"):
        one_pass.run(program.module, context)
        assert program.module.operation.verify(), one_pass.name
    text = _FLOAT64_ATTRIBUTES.sub("", program.text())
    assert not [word for word in _FORBIDDEN if word in text]
    assert "f64" not in text or ",f64>" in before, "float64 that the model does not have"
    found = Counter(re.findall(r'"lk\.(\w+)"', text))
    assert not Counter(case.expects) - found, f"expected {case.expects}, found {dict(found)}"

    expected = [to_numpy(output) for output in _flat(case.function(*case.arguments))]
    results = interpret(program.module, [to_numpy(argument) for argument in case.arguments], program.weights.get)
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if other.dtype in _TOLERANCES:
            rtol, atol = _TOLERANCES[other.dtype]
            np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(one, other)


def test_compiled_function_computes_what_eager_does(captured: Captured) -> None:
    report = check_program(captured.program.copy(), per_op=False)
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
