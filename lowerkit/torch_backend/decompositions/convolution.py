"""Gradients of convolutions.

That of the input is the transposed convolution. That of the weight is, for each place of the window, the product of the
output's gradient with what the window saw there; where windows neither overlap nor leave gaps, one product of all
places. Of a transposed convolution data and output change their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten

Optional3 = tuple[Tensor | None, Tensor | None, Tensor | None]


def convolution_backward(
    grad: Tensor,
    data: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Optional3:
    """Gradients of ``aten.convolution``: of the data, the weight and the bias, where ``mask`` asks for them."""
    rank = data.dim() - 2
    stride, padding, dilation = (_each(numbers, rank) for numbers in (stride, padding, dilation))
    window = weight.shape[2:]
    of_data = of_weight = of_bias = None
    if mask[0] and transposed:
        of_data = aten.convolution(grad, weight, None, stride, padding, dilation, False, [0] * rank, groups)
    elif mask[0]:
        left = [
            extent - ((out - 1) * step - 2 * pad + far * (size - 1) + 1)
            for extent, out, step, pad, far, size in zip(
                data.shape[2:], grad.shape[2:], stride, padding, dilation, window, strict=True
            )
        ]
        of_data = aten.convolution(grad, weight, None, stride, padding, dilation, True, left, groups)
    if mask[1]:
        seen, moved = (grad, data) if transposed else (data, grad)
        of_weight = _weight_gradient(seen, moved, window, stride, padding, dilation, groups)
    if mask[2]:
        of_bias = grad.sum([0, *range(2, grad.dim())])
    return of_data, of_weight, of_bias


def _each(numbers: Sequence[int], rank: int) -> list[int]:
    return list(numbers) * rank if len(numbers) == 1 else list(numbers)


def _weight_gradient(
    seen: Tensor,
    moved: Tensor,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """What windows over ``seen`` (N, groups x C, ...) gave times ``moved`` (N, groups x O, ...): groups x O, C, ..."""
    rows = _by_group(moved, groups)
    if list(stride) == list(window) and not any(padding) and all(far == 1 for far in dilation):
        return _weight_gradient_of_tiles(seen, rows, moved.shape[2:], window, groups)
    padded = aten.constant_pad_nd(seen, [pad for side in reversed(padding) for pad in (side, side)])
    places = []
    for place in product(*(range(size) for size in window)):
        part = padded
        for axis, (at, step, far) in enumerate(zip(place, stride, dilation, strict=True)):
            first = at * far
            last = first + (moved.shape[2 + axis] - 1) * step + 1
            part = aten.slice(part, 2 + axis, first, last, step)
        places.append(torch.bmm(rows, _by_group(part, groups).transpose(1, 2)))
    stacked = torch.stack(places, -1)  # groups, O, C, places
    return stacked.reshape(moved.shape[1], seen.shape[1] // groups, *window)


def _weight_gradient_of_tiles(
    seen: Tensor, rows: Tensor, tiles: Sequence[int], window: Sequence[int], groups: int
) -> Tensor:
    """The same for windows that lie side by side: ``rows`` is groups, O, N x tiles."""
    rank = len(window)
    shape = [seen.shape[0], groups, seen.shape[1] // groups]
    for axis, (count, size) in enumerate(zip(tiles, window, strict=True)):
        seen = aten.slice(seen, 2 + axis, 0, count * size)
        shape += [count, size]
    parts = seen.reshape(shape)
    counts, inside = [3 + 2 * axis for axis in range(rank)], [4 + 2 * axis for axis in range(rank)]
    columns = parts.permute(1, 0, *counts, 2, *inside).reshape(groups, rows.shape[2], -1)
    return torch.bmm(rows, columns).reshape(groups * rows.shape[1], shape[2], *window)


def _by_group(values: Tensor, groups: int) -> Tensor:
    """(N, groups x C, ...) as (groups, C, N x ...)."""
    channels = values.shape[1] // groups
    split = values.reshape(values.shape[0], groups, channels, -1)
    return split.permute(1, 2, 0, 3).reshape(groups, channels, -1)
