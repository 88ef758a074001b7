"""Windows of unequal sizes with the places of their maxima, and the convolution over [time, batch, channels]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.dims import is_static
from lowerkit.errors import UnsupportedError

_MOST_TAPS = 49
"""Taps of a window over an image of symbolic extents: each is a few ops."""


def _window_places(size: int, count: int) -> Tensor:
    """Which elements each of ``count`` windows over ``size`` elements covers, [count, longest].

    Window i goes from floor(i size / count) to ceil((i + 1) size / count); a shorter one repeats its last element.
    """
    longest = max(-(-((index + 1) * size) // count) - index * size // count for index in range(count))
    window = torch.arange(count).unsqueeze(1)
    first = torch.div(window * size, count, rounding_mode="floor")
    last = torch.div((window + 1) * size + count - 1, count, rounding_mode="floor") - 1
    return torch.minimum(first + torch.arange(longest), last)


def _adaptive_maxima(value: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    spatial = len(output_size)
    if not all(is_static(extent) for extent in (*value.shape[-spatial:], *output_size)):
        return NotImplemented
    sizes = [int(extent) for extent in value.shape[-spatial:]]
    if 0 in output_size or 0 in sizes:
        return NotImplemented
    return _maxima(value, [_window_places(size, count) for size, count in zip(sizes, output_size, strict=True)])


def _pooled_maxima(
    value: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    spatial = 2
    places: list[Tensor] = []
    kernels, paddings, dilations = (list(given) * spatial for given in (kernel_size, padding, dilation))
    strides = list(stride) * spatial or kernels
    if not all(is_static(extent) for extent in value.shape[-spatial:]):
        if kernels[0] * kernels[1] > _MOST_TAPS:
            raise UnsupportedError(
                "LK4001",
                f"the places of maxima in windows of {kernels[0]} by {kernels[1]} over an image of open extents",
                op="aten.max_pool2d_with_indices",
                hint="fix the extents of the image",
            )
        return _maxima_by_taps(value, kernels, strides, paddings, dilations, ceil_mode)
    for axis in range(spatial):
        size, step, apart = int(value.shape[axis - spatial]), strides[axis], dilations[axis]
        reach = apart * (kernels[axis] - 1)
        count = (size + 2 * paddings[axis] - reach - 1 + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= size + paddings[axis]:
            count -= 1  # the last window would start in the high padding
        starts = range(-paddings[axis], count * step - paddings[axis], step)
        if not all(any(0 <= start + tap < size for tap in range(0, reach + 1, apart)) for start in starts):
            return NotImplemented  # a window of padding alone
        start = torch.arange(count).unsqueeze(1) * step - paddings[axis]
        first = start + (start.clamp(max=0).neg() + apart - 1) // apart * apart
        last = start + ((size - 1 - start) // apart * apart).clamp(max=reach)
        # In the place of padding stand the first and the last element of the window once more.
        place = start + torch.arange(kernels[axis]) * apart
        places.append(torch.minimum(torch.maximum(place, first), last))
    return _maxima(value, places)


def _maxima_by_taps(
    value: Tensor,
    kernels: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    """As :func:`_maxima` for images of any extents: the taps of all windows are compared one after the other."""
    height, width = value.shape[-2:]
    counts: list[int] = []
    for axis, size in enumerate((height, width)):
        step, over = strides[axis], strides[axis] - 1 if ceil_mode else 0
        count = (size + 2 * paddings[axis] - dilations[axis] * (kernels[axis] - 1) - 1 + over) // step + 1
        # As in PyTorch, whose export makes the answer a condition on the size.
        counts.append(count - 1 if ceil_mode and (count - 1) * step >= size + paddings[axis] else count)
    first_row, first_column = (torch.arange(counts[axis]) * strides[axis] - paddings[axis] for axis in (0, 1))
    (top, left), (below, beside) = paddings[:2], (step - 1 if ceil_mode else 0 for step in strides[:2])
    padded = value
    if any((top, left, below, beside)):
        padded = torch.nn.functional.pad(value, (left, left + beside, top, top + below))
    best, index = value.new_zeros([*value.shape[:-2], *counts]), torch.full([*value.shape[:-2], *counts], -1)
    for tap in range(kernels[0] * kernels[1]):
        down, right = dilations[0] * (tap // kernels[1]), dilations[1] * (tap % kernels[1])
        row, column = (first_row + down).unsqueeze(1), first_column + right
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        taken = padded[
            ...,
            down : down + (counts[0] - 1) * strides[0] + 1 : strides[0],
            right : right + (counts[1] - 1) * strides[1] + 1 : strides[1],
        ]
        better = inside & ((index < 0) | (taken > best) | torch.isnan(taken))
        best = torch.where(better, taken, best)
        index = torch.where(better, row * width + column, index)
    return best, index


def _maxima(value: Tensor, places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The maximum of each window, and its place in the flattened spatial dims: of equals the first, of NaN the last.

    ``places`` says for each spatial dim which elements each window covers, [count, longest], in rising order.
    """
    spatial = len(places)
    sizes = [int(extent) for extent in value.shape[-spatial:]]
    output_size = [place.shape[0] for place in places]
    lead = value.dim() - spatial
    windows = value
    flat = torch.zeros([1] * (2 * spatial), dtype=torch.int64)
    for axis, place in enumerate(places):
        shape = [1] * (2 * spatial)
        shape[axis], shape[spatial + axis] = place.shape
        flat = flat + (place * math.prod(sizes[axis + 1 :])).reshape(shape)
        # Each dim becomes two: the window, and within the window.
        extents = list(windows.shape)
        position = lead + 2 * axis
        windows = windows.index_select(position, place.reshape(-1))
        windows = windows.reshape([*extents[:position], *place.shape, *extents[position + 1 :]])
    order = [
        *range(lead),
        *(lead + 2 * axis for axis in range(spatial)),
        *(lead + 2 * axis + 1 for axis in range(spatial)),
    ]
    windows = windows.permute(order)
    windows = windows.reshape([*windows.shape[: lead + spatial], -1])
    flat = flat.expand([*output_size, *(place.shape[1] for place in places)]).reshape([*output_size, -1])
    values, within = torch.max(windows, dim=-1)
    number = torch.arange(windows.shape[-1])
    last_nan = torch.where(torch.isnan(windows), number, -1).amax(-1)
    within = torch.where(last_nan >= 0, last_nan, within)
    return values, torch.gather(flat.expand(windows.shape), -1, within.unsqueeze(-1)).squeeze(-1)


def _conv_tbc(value: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution over the first dim of [time, batch, channels] by [kernel, input channels, output channels]."""
    result = aten.convolution(
        *(value.permute(1, 2, 0), weight.permute(2, 1, 0), bias, [1], [pad], [1], False, [0], 1),
    )
    return result.permute(2, 0, 1)


TABLE: dict[Any, Callable[..., Any]] = {aten.conv_tbc.default: _conv_tbc}
"""By overload."""

WITH_PLACES: dict[Any, Callable[..., Any]] = {
    aten.adaptive_max_pool2d.default: _adaptive_maxima,
    aten.adaptive_max_pool3d.default: _adaptive_maxima,
    aten.max_pool2d_with_indices.default: _pooled_maxima,
}
"""By overload; for nodes whose places are read. Without them, a pool stays one op for the passes to see."""
