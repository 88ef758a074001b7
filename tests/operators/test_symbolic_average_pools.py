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
from lowerkit.errors import UnsupportedError

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


@pytest.mark.parametrize("rank", EXTENTS)
def test_windows_over_the_end(rank: int) -> None:
    module = Pools(rank)
    shapes = [(2, 3, *extents) for extents in EXTENTS[rank]]
    spec = (dict.fromkeys(range(2, 2 + rank), Dim.AUTO),)
    compiled = lowerkit.compile(module, (torch.randn(shapes[0]),), dynamic_shapes=spec)
    for shape in shapes:
        x = torch.randn(shape)
        found: Any = compiled(x)
        for have, want in zip(found, module(x), strict=True):
            np.testing.assert_allclose(have, want.numpy(), rtol=1e-5, atol=1e-6)


def test_means_of_whole_numbers_are_refused() -> None:
    """Sums of 64 bits have no pool: they are exact in eager, and in no float."""
    with pytest.raises(UnsupportedError, match="floating point elements, found i64"):
        lowerkit.compile(Pools(2), (torch.ones(2, 3, 5, 6, dtype=torch.int64),))
