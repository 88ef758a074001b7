"""Pools, resizing, scatters and membership whose extents the export left open, at other extents, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import lowerkit
from lowerkit.capture.torch_export.symbolic.expressions import floored_factor

OPS: Any = torch.ops.aten


class Together(nn.Module):
    """Several functions of the same tensors."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for function in self.functions:
            result = function(*tensors)
            found += [result] if isinstance(result, Tensor) else list(result)
        return found


def open_and_eager(functions: list[Callable[..., Any]], calls: list[tuple[Tensor, ...]], rtol: float = 0.0) -> None:
    """Compiles at the extents of the first call, all of them open, and compares at all."""
    module = Together(*functions)
    extents = tuple(dict.fromkeys(range(value.dim()), Dim.AUTO) for value in calls[0])
    compiled: Any = lowerkit.compile(module, calls[0], dynamic_shapes=(extents,))
    for tensors in calls:
        for place, (have, want) in enumerate(zip(compiled(*tensors), module(*tensors), strict=True)):
            message = f"result {place} at {[tuple(value.shape) for value in tensors]}"
            np.testing.assert_allclose(have, want.numpy(), rtol=rtol, atol=rtol, err_msg=message)


def images(*shapes: tuple[int, ...], special: bool = False) -> list[tuple[Tensor, ...]]:
    found = [torch.randn(shape) for shape in shapes]
    for value in found:
        if special:
            flat = value.view(-1)
            flat[3], flat[8], flat[11], flat[4] = torch.nan, torch.inf, -torch.inf, flat[5]
    return [(value,) for value in found]


def test_the_nearest_of_given_sizes() -> None:
    """Places are clamped, and where the sizes have a ratio of 1 or 2 no factor is heeded."""
    open_and_eager(
        [
            lambda x: OPS.upsample_nearest2d(x, [8, 8], 2.0, 2.0),
            lambda x: OPS.upsample_nearest2d(x, [8, 11], None, None),
            lambda x: OPS._upsample_nearest_exact2d(x, [6, 9], 1.3, 2.2),
        ],
        images((2, 3, 4, 4), (2, 3, 2, 2), (3, 2, 7, 9), (2, 3, 8, 8)),
    )


def test_antialiased_resizing() -> None:
    open_and_eager(
        [
            lambda x: functional.interpolate(x, size=(3, 9), mode="bilinear", antialias=True),
            lambda x: functional.interpolate(x, scale_factor=1.7, mode="bilinear", antialias=True),
        ],
        images((2, 3, 6, 7), (2, 3, 3, 5), (3, 2, 7, 9), (2, 3, 13, 4), special=True),
        rtol=1e-5,
    )


def test_sizes_by_factors_that_are_no_binary_fractions() -> None:
    open_and_eager(
        [
            lambda x: functional.interpolate(x, scale_factor=0.6, mode="bilinear", recompute_scale_factor=True),
            lambda x: functional.interpolate(x, scale_factor=1.7, mode="area"),
        ],
        images((2, 3, 6, 7), (2, 3, 10, 5), (3, 2, 25, 9)),
        rtol=1e-5,
    )


@pytest.mark.parametrize("factor", [0.6, 1.7, 0.8, 1 / 3, 1.5, 12.3])
def test_a_factor_as_a_fraction(factor: float) -> None:
    fraction = floored_factor(factor)
    assert fraction is not None
    sizes = np.concatenate([np.arange(1 << 16), (1 << 33) - np.arange(1, 1 << 16)])
    np.testing.assert_array_equal((sizes * factor).astype(np.int64), sizes * fraction[0] // fraction[1])


def test_a_factor_that_is_rounded_to_less_is_no_fraction() -> None:
    assert int(90 * 0.7) == 62
    assert floored_factor(0.7) is None


def test_adaptive_pools() -> None:
    """Windows of unequal sizes, and sizes of the result that are open."""
    open_and_eager(
        [
            lambda x: functional.adaptive_max_pool2d(x, (3, 2), return_indices=True),
            lambda x: functional.adaptive_max_pool1d(x[0], 5),
            lambda x: functional.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True),
            lambda x: functional.adaptive_avg_pool2d(x, (None, 3)),
        ],
        images((2, 3, 6, 7), (2, 4, 4, 4), (3, 2, 7, 9), (2, 3, 12, 3), special=True),
        rtol=1e-6,
    )


def test_places_of_maxima() -> None:
    """Of volumes, and of large windows."""
    open_and_eager(
        [
            lambda x: functional.max_pool3d(x, 2, 1, return_indices=True),
            lambda x: functional.max_pool2d(x, 9, 1, 4, return_indices=True),
        ],
        images((2, 3, 6, 7), (2, 4, 4, 4), (3, 5, 3, 9), special=True),
    )


def test_scatters() -> None:
    def call(rows: int, columns: int, taken: int) -> tuple[Tensor, ...]:
        index = torch.stack([torch.randperm(3) for _ in range(taken)])
        return torch.randn(rows, columns), index, torch.randn(3, 4)

    open_and_eager(
        [
            lambda x, i, s: x.scatter_add(0, i, s),
            lambda x, i, s: x.scatter(1, i, s),
            lambda x, i, s: x.scatter(1, i, 2.5),
            lambda x, i, s: x.scatter_reduce(0, i, s, "mean", include_self=False),
            lambda x, i, s: x.masked_scatter(x > 9, s),
            lambda x, i, s: s.masked_scatter(s > 0, x),
        ],
        [call(5, 6, 2), call(3, 4, 3), call(7, 5, 2)],
        rtol=1e-6,
    )


def test_membership() -> None:
    open_and_eager(
        [torch.isin, lambda x, y: torch.isin(x, y, invert=True)],
        [
            (torch.randint(9, (rows, 5)).float(), torch.tensor(among))
            for rows, among in ((4, [1.0, 3, torch.nan]), (2, [7.0, 2]))
        ],
    )


@pytest.mark.parametrize(("rank", "stride", "padding", "dilation", "groups"), [(1, 2, 3, 2, 2), (2, 1, 1, 1, 4)])
def test_convolutions_with_open_windows(rank: int, stride: int, padding: int, dilation: int, groups: int) -> None:
    """The window is an argument here: its sizes choose no kernel, they are the extents of a plain loop."""

    def tensors(window: int, extent: int) -> tuple[Tensor, ...]:
        data = torch.randint(-8, 9, (2, 8, *range(extent, extent + rank))).float()
        taps = torch.randint(-8, 9, (8, 8 // groups, *[window] * rank)).float()
        return data, taps

    convolve = {1: functional.conv1d, 2: functional.conv2d}[rank]
    open_and_eager(
        [lambda data, taps: convolve(data, taps, None, stride, padding, dilation, groups)],
        [tensors(3, 11), tensors(2, 9), tensors(4, 17), tensors(5, 12)],
    )
