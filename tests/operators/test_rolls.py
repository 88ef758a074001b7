"""Rolls by more places than an extent holds: sizes that are known at run time only may be shorter than the shift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import lowerkit


class Rolls(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.roll(x, 3, 1),
            torch.roll(x, -3, 1),
            torch.roll(x, 0, 1),
            torch.roll(x, -100, -1),
            torch.roll(x, (1, -5), (0, 1)),
            torch.roll(x, (2, 3), (1, 1)),
            torch.roll(x, 7, 0),
            torch.roll(x, 5),
            torch.roll(x, -5),
        )


OPEN: list[dict[int, Any]] = [
    {},
    {1: Dim("n", min=0, max=99)},
    {0: Dim("m", min=0, max=99)},
    {0: Dim("m", min=0, max=99), 1: Dim("n", min=0, max=99)},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bool, torch.float64])
@pytest.mark.parametrize("dims", OPEN, ids=["static", "columns", "rows", "both"])
def test_rolls_of_any_extent(dims: dict[int, Any], dtype: torch.dtype) -> None:
    compiled: Any = lowerkit.compile(Rolls(), (torch.zeros(3, 4, dtype=dtype),), dynamic_shapes=(dims,))
    for extent in (0, 1, 2, 3, 4, 5, 7, 64) if dims else (4,):
        x = (torch.rand([extent if axis in dims else (3, 4)[axis] for axis in range(2)]) * 250).to(dtype)
        for number, (found, expected) in enumerate(zip(compiled(x), Rolls()(x), strict=True)):
            np.testing.assert_array_equal(found, expected.numpy(), err_msg=f"output {number}, extent {extent}")
