"""Average pools whose last windows reach over the end, at sizes that the export left open."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim
from torch.nn import functional

import lowerkit

# Extents of the example and of further calls; whether the last window of ceil_mode counts is a guard, so the remainders
# by the strides stay the same.
EXTENTS = {1: [(13,), (25,), (19,)], 2: [(13, 14), (19, 26), (25, 20)], 3: [(7, 13, 8), (13, 7, 14)]}


class Pools(torch.nn.Module):
    """Every rank that PyTorch has them for, with the padding counted or not and each way to divide."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for (kernel, stride, padding), counted in itertools.product(((3, 2, 1), (2, 3, 0)), (False, True)):
            if self.rank == 1:
                results.append(functional.avg_pool1d(x, kernel, stride, padding, True, counted))
                continue
            pool = functional.avg_pool2d if self.rank == 2 else functional.avg_pool3d
            results += [pool(x, kernel, stride, padding, True, counted, divisor) for divisor in (None, 2, 3)]
        return results


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("rank", EXTENTS)
def test_windows_over_the_end(rank: int, dtype: torch.dtype) -> None:
    """Means of integers are cut off once, after the division, below zero too."""
    if rank == 3 and dtype == torch.int64:
        pytest.skip("PyTorch has no avg_pool3d of integers")
    module = Pools(rank)
    shapes = [(2, 3, *extents) for extents in EXTENTS[rank]]
    spec = (dict.fromkeys(range(2, 2 + rank), Dim.AUTO),)
    compiled = lowerkit.compile(module, (values(shapes[0], dtype),), dynamic_shapes=spec)
    for shape in shapes:
        x = values(shape, dtype)
        found: Any = compiled(x)
        for have, want in zip(found, module(x), strict=True):
            if dtype == torch.int64:
                np.testing.assert_array_equal(have, want.numpy())
            else:
                np.testing.assert_allclose(have, want.numpy(), rtol=1e-5, atol=1e-6)


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-100, 100, shape) if dtype == torch.int64 else torch.randn(shape)
