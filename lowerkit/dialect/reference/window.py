"""Windows over spatial dimensions: convolution, its adjoint, and pools.

Vocabulary: arrays are brought to ``[N, C, spatial...]``; the window view has shape ``[N, C, out..., kernel...]`` and
shares memory with the padded input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.reference.factors import factor
from lowerkit.dialect.reference.numeric import Array, is_floating, matrix_product, smallest, widen
from lowerkit.dialect.window import padding_pairs


def channels_first(array: Array, channels_last: bool) -> Array:
    """Returns ``[N, C, spatial...]``."""
    return np.moveaxis(array, -1, 1) if channels_last else array


def restore_layout(array: Array, channels_last: bool) -> Array:
    """The inverse of :func:`channels_first`."""
    return np.moveaxis(array, 1, -1) if channels_last else array


def windows(
    array: Array,
    fill: Any,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Array:
    """Returns the window view of ``[N, C, spatial...]`` padded with ``fill``."""
    padded = np.pad(array, [(0, 0), (0, 0), *padding_pairs(padding)], constant_values=fill)
    count = len(kernel)
    out = [
        (size - spread * (k - 1) - 1) // stride + 1
        for size, k, stride, spread in zip(padded.shape[2:], kernel, strides, dilation, strict=True)
    ]
    steps = padded.strides[2:]
    return np.lib.stride_tricks.as_strided(
        padded,
        shape=[*padded.shape[:2], *out, *kernel],
        strides=[
            *padded.strides[:2],
            *[steps[i] * strides[i] for i in range(count)],
            *[steps[i] * dilation[i] for i in range(count)],
        ],
        writeable=False,
    )


def conv(
    source: Array,
    filters: Array,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Convolves ``[N, Cin, spatial...]`` with ``[Cout, Cin/groups, kernel...]``, in float64 or int64."""
    data, taps = factor(source), factor(filters)
    outputs, per_group, *kernel = taps.shape
    view = windows(data, 0, kernel=kernel, strides=strides, padding=padding, dilation=dilation)
    count = len(kernel)
    out = view.shape[2 : 2 + count]
    matrix = taps.reshape(groups, outputs // groups, per_group * math.prod(kernel))
    result = np.empty((data.shape[0], outputs, *out), data.dtype)
    for sample in range(data.shape[0]):  # one sample at a time bounds the copy of the windows
        columns = np.moveaxis(view[sample], range(1, 1 + count), range(-count, 0))
        columns = columns.reshape(groups, per_group * math.prod(kernel), math.prod(out))
        result[sample] = matrix_product(matrix, columns).reshape(outputs, *out)
    return result


def conv_transpose(
    source: Array,
    filters: Array,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """Scatters ``[N, Cin, spatial...]`` through ``[Cin, Cout/groups, kernel...]``, in float64 or int64."""
    data, taps = factor(source), factor(filters)
    batch, channels, *spatial = data.shape
    _, per_group, *kernel = taps.shape
    full = [
        (size - 1) * stride + spread * (k - 1) + 1 + extra
        for size, k, stride, spread, extra in zip(spatial, kernel, strides, dilation, output_padding, strict=True)
    ]
    result = np.zeros((batch, groups, per_group, *full), data.dtype)
    grouped = data.reshape(batch, groups, channels // groups, math.prod(spatial))
    matrix = taps.reshape(groups, channels // groups, per_group, *kernel)
    for tap in np.ndindex(*kernel):
        weights = np.swapaxes(matrix[(slice(None), slice(None), slice(None), *tap)], 1, 2)
        product = matrix_product(weights, grouped).reshape(batch, groups, per_group, *spatial)
        place = tuple(
            slice(k * spread, k * spread + (size - 1) * stride + 1, stride)
            for k, spread, size, stride in zip(tap, dilation, spatial, strides, strict=True)
        )
        result[(slice(None), slice(None), slice(None), *place)] += product
    crop = tuple(slice(low, size - high) for size, (low, high) in zip(full, padding_pairs(padding), strict=True))
    return result.reshape(batch, groups * per_group, *full)[(slice(None), slice(None), *crop)]


def max_pool(
    source: Array, *, kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Array:
    """The maximum of each window of ``[N, C, spatial...]``; NaN wins."""
    wide = source.astype(np.float64) if is_floating(source.dtype) else source
    view = windows(wide, smallest(source.dtype), kernel=kernel, strides=strides, padding=padding, dilation=dilation)
    return view.max(axis=tuple(range(-len(kernel), 0)))


def avg_pool(
    source: Array,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    count_include_pad: bool,
    divisor: int,
    ceil_extra: Sequence[int],
) -> Array:
    """The mean of each window of ``[N, C, spatial...]``, in float64."""
    axes = tuple(range(-len(kernel), 0))
    window = {"kernel": kernel, "strides": strides, "dilation": dilation}
    total = windows(widen(source), 0.0, padding=padding, **window).sum(axis=axes)
    if divisor:
        return total / divisor
    counted = np.ones((1, 1, *source.shape[2:]))
    if count_include_pad:
        inner = [(low, high - extra) for (low, high), extra in zip(padding_pairs(padding), ceil_extra, strict=True)]
        counted = np.pad(counted, [(0, 0), (0, 0), *inner], constant_values=1.0)
        rest = [value for extra in ceil_extra for value in (0, extra)]
    else:
        rest = list(padding)
    count = windows(counted, 0.0, padding=rest, **window).sum(axis=axes)
    return total / np.maximum(count, 1.0)
