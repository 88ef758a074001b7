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
