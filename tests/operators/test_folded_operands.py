"""Operands that are one value, or constants: what folds them gives the shape, the type and the numbers of eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import lowerkit


def hold(module: nn.Module, arguments: tuple[torch.Tensor, ...], dynamic_shapes: Any = None) -> None:
    """Compares shapes, element types and bits with eager."""
    found: Any = lowerkit.compile(module.eval(), arguments, dynamic_shapes=dynamic_shapes)(*arguments)
    expected: Any = module(*arguments)
    for place, (have, want) in enumerate(zip(found, expected, strict=True)):
        assert have.dtype == want.numpy().dtype, place
        np.testing.assert_array_equal(have, want.numpy(), err_msg=str(place), strict=True)
        if have.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(have), np.signbit(want.numpy()), err_msg=str(place))


class Itself(nn.Module):
    def forward(self, condition: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = torch.where(condition, x, x)
        return chosen, chosen[::2], (x * 2).where(condition, x * 2).sum(0)


@pytest.mark.parametrize("is_open", [False, True], ids=["static", "open"])
@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ((1, 1), ()), ((3, 2), ()), ((3, 2), (1,)), ((3, 4), (3, 1)), ((3, 2), (2,)), ((2,), (3, 2)), ((), (3, 2)),
        ((3, 1), (1, 4)), ((3, 1, 2), (4, 1)), ((0, 2), (1, 1)),
    ],
)  # fmt: skip
def test_a_choice_between_a_value_and_itself(condition: tuple[int, ...], value: tuple[int, ...], is_open: bool) -> None:
    shapes = condition, value
    open_dims = tuple({axis: Dim.AUTO for axis, extent in enumerate(shape) if extent > 1} for shape in shapes)
    hold(Itself(), (torch.rand(condition) > 0.5, torch.randn(value)), open_dims if is_open else None)


class OneNumber(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = torch.where(x > 0, 2.5, 2.5)
        nan = float("nan")
        return (
            chosen,
            chosen + (-2),
            -2 - chosen,
            chosen < 1,
            torch.add(chosen, chosen, alpha=-2),
            torch.where(x > 0, -7.0, -7.0) % 2,
            torch.where(x > 0, 3, 3) * x,
            torch.where(x > 0, -0.0, 0.0),
            torch.where(x > 0, 0.0, -0.0),
            torch.where(x > 0, nan, nan),
            torch.where(x > 0, nan, 1.0),
            ~torch.where(x > 0, True, True),
            torch.where(x > 0, 1, True),
        )


class NoDims(nn.Module):
    """Of any and all; sums without dims are over all."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.any(x, dim=()),
            torch.all(x, dim=(), keepdim=True),
            torch.any(x.to(torch.uint8), dim=()),
            torch.any(x, dim=None),
            torch.all(x, dim=(0, 1)),
            torch.any(x[0, 0], dim=()),
            x.sum(dim=()),
        )


@pytest.mark.parametrize("is_open", [False, True], ids=["static", "open"])
@pytest.mark.parametrize("module", [OneNumber(), NoDims()], ids=lambda module: type(module).__name__)
def test_arguments_without_a_choice(module: nn.Module, is_open: bool) -> None:
    x = torch.tensor([[-1.0, 0.0, 2.0, 0.0], [3.0, -4.0, 0.0, 1.0], [0.0, 0.0, 5.0, -2.0]])
    hold(module, (x,), ({0: Dim.AUTO},) if is_open else None)


class FineNumbers(nn.Module):
    """Numbers that f32 does not hold, where an overload takes a tensor."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.div(x, 1e-3, rounding_mode="floor"),
            torch.div(x, 1e-3, rounding_mode="trunc"),
            torch.floor_divide(x, 1e-3),
            x // 0.1,
            x % 1e-3,
            torch.fmod(x, 1e-3),
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64], ids=str)
def test_numbers_that_have_the_digits_of_a_double(dtype: torch.dtype) -> None:
    """1.499 over a thousandth is 1499, or 1498 over the thousandth of f32."""
    thousandths = torch.arange(-3000, 3000, dtype=torch.float64) / 1000
    hold(FineNumbers(), (torch.cat([thousandths, torch.nextafter(thousandths, torch.tensor(9.0).double())]).to(dtype),))
