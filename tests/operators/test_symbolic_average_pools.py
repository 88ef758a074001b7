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
            divisors = (None, 3) if counted else (None, 2)
            results += [pool(x, kernel, stride, padding, True, counted, divisor) for divisor in divisors]
        return results


def _bounded(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape) if dtype.is_floating_point else torch.randint(-(2**58), 2**58, shape)


@pytest.mark.parametrize(("rank", "dtype"), [*((rank, torch.float32) for rank in EXTENTS), (2, torch.int64)])
def test_windows_over_the_end(rank: int, dtype: torch.dtype) -> None:
    """Sums of 64 bits are exact in eager, and in no float."""
    module = Pools(rank)
    shapes = [(2, 3, *extents) for extents in EXTENTS[rank]]
    spec = (dict.fromkeys(range(2, 2 + rank), Dim.AUTO),)
    compiled = lowerkit.compile(module, (_bounded(dtype, shapes[0]),), dynamic_shapes=spec)
    for shape in shapes:
        x = _bounded(dtype, shape)
        found: Any = compiled(x)
        for have, want in zip(found, module(x), strict=True):
            np.testing.assert_allclose(have, want.numpy(), rtol=1e-5 if dtype.is_floating_point else 0, atol=1e-6)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("rank", EXTENTS)
def test_means_of_whole_numbers(rank: int, symbolic: bool) -> None:
    """Without a last window over the end, of known extents and of open ones, with a batch and without."""

    class Means(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            pool = getattr(functional, f"avg_pool{rank}d")
            return pool(x, 3, 2, 1), pool(x[0], 2), pool(x, 3, 1, 1, False, False)

    x = _bounded(torch.int64, (2, 3, *EXTENTS[rank][0]))
    spec: Any = (dict.fromkeys(range(2, 2 + rank), Dim.AUTO),) if symbolic else None
    compiled = lowerkit.compile(Means(), (x,), dynamic_shapes=spec)
    for extents in EXTENTS[rank] if symbolic else EXTENTS[rank][:1]:
        x = _bounded(torch.int64, (2, 3, *extents))
        for have, want in zip(compiled(x), Means()(x), strict=True):
            np.testing.assert_array_equal(have, want.numpy())
