"""Joins of tensors of unlike element types: each part is brought to the common type before it is moved, as in eager."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowerkit
from lowerkit.program.dtypes import to_numpy

DTYPES = (torch.uint8, torch.int8, torch.bool, torch.int64, torch.bfloat16, torch.float16, torch.float32)


class Joins(nn.Module):
    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            join([left, right])
            for left, right in itertools.pairwise([*values, *reversed(values)])
            for join in (torch.hstack, torch.vstack, torch.dstack, torch.column_stack, torch.cat, torch.stack)
        )


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns -6 of a type with a sign and 250 of one without, among others."""
    drawn = torch.randint(-128, 256, shape, generator=torch.Generator().manual_seed(len(shape)))
    return (drawn > 0) if dtype is torch.bool else drawn.to(dtype)


@pytest.mark.parametrize("shape", [(2,), (2, 3)], ids=str)
def test_parts_are_read_in_their_own_type(shape: tuple[int, ...]) -> None:
    values = tuple(numbers(shape, dtype) for dtype in DTYPES)
    compiled: Any = lowerkit.compile(Joins(), values)
    for number, (found, expected) in enumerate(zip(compiled(*values), Joins()(*values), strict=True)):
        np.testing.assert_array_equal(found, to_numpy(expected), err_msg=f"output {number}", strict=True)


def test_250_of_a_byte_without_sign_stays_250() -> None:
    class Rows(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.hstack([a, b])

    a, b = torch.tensor([250], dtype=torch.uint8), torch.tensor([-6])
    compiled: Any = lowerkit.compile(Rows(), (a, b))
    assert compiled(a, b).tolist() == [250, -6]
