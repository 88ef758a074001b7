"""Pools as a padded input and one linalg.generic over the window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.types import compute_type
from lowerkit.dialect.window import padding_pairs, spatial_axes
from lowerkit.mlir import arith, ir


def max_pool(
    source: ir.Value,
    *,
    channels_last: bool,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> ir.Value:
    """The maximum of each window; padding is minus infinity, or the smallest integer."""
    start = scalar.lowest(source.type.element_type)
    return _reduce_windows(
        source,
        start,
        start,
        scalar.maximum,
        channels_last=channels_last,
        kernel=kernel,
        strides=strides,
        padding=padding,
        dilation=dilation,
    )


def avg_pool(
    source: ir.Value,
    *,
    channels_last: bool,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    count_include_pad: bool,
    divisor: int,
    ceil_extra: Sequence[int],
) -> ir.Value:
    """The mean of each window: a sum in the compute type, divided by the count of its elements."""
    element = source.type.element_type
    wide = compute_type(element)
    zero, start = scalar.constant(0, element), scalar.constant(0, wide)

    def accumulate(item: ir.Value, total: ir.Value) -> ir.Value:
        return scalar.add(total, scalar.convert(item, wide))

    total = _reduce_windows(
        source,
        zero,
        start,
        accumulate,
        channels_last=channels_last,
        kernel=kernel,
        strides=strides,
        padding=padding,
        dilation=dilation,
    )
    axes = spatial_axes(source.type.rank, channels_last)
    spatial = [build.size_of(source, axis) for axis in axes]
    pairs = padding_pairs(padding)
    # Which part of the padded dimension counts, as [low, high) in coordinates of the input.
    if count_include_pad:
        bounds = [
            (-low, build.add_sizes(size, high - extra))
            for size, (low, high), extra in zip(spatial, pairs, ceil_extra, strict=True)
        ]
    else:
        bounds = [(0, size) for size in spatial]

    def divide(item: ir.Value) -> ir.Value:
        if divisor:
            return scalar.convert(scalar.divide(item, scalar.constant(divisor, wide)), element)
        count = build.constant_index(1)
        for d, axis in enumerate(axes):
            first = scalar.multiply(build.loop_index(axis), build.constant_index(strides[d]))
            starts = scalar.subtract(first, build.constant_index(pairs[d][0]))
            inside = _taps_inside(starts, kernel[d], dilation[d], bounds[d])
            count = scalar.multiply(count, inside)
        count = arith.MaxSIOp(count, build.constant_index(1)).result
        return scalar.convert(scalar.divide(item, scalar.convert(count, wide)), element)

    return build.map_elements([(total, build.loops(range(total.type.rank)))], build.sizes_of(total), element, divide)


def _taps_inside(start: ir.Value, kernel: int, dilation: int, bounds: tuple[int, build.Size]) -> ir.Value:
    """How many positions ``start + k * dilation`` for k < kernel lie in ``bounds``; inside a generic body."""
    zero, limit = build.constant_index(0), build.constant_index(kernel)

    def clipped(bound: build.Size) -> ir.Value:
        distance = scalar.subtract(build.as_index(bound), start)
        steps = arith.CeilDivSIOp(distance, build.constant_index(dilation)).result
        return scalar.minimum(scalar.maximum(steps, zero), limit)

    return scalar.subtract(clipped(bounds[1]), clipped(bounds[0]))


def _reduce_windows(
    source: ir.Value,
    fill: ir.Value,
    start: ir.Value,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
    *,
    channels_last: bool,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> ir.Value:
    rank, count = source.type.rank, len(kernel)
    axes = spatial_axes(rank, channels_last)
    low, high = [0] * rank, [0] * rank
    for axis, (before, after) in zip(axes, padding_pairs(padding), strict=True):
        low[axis], high[axis] = before, after
    padded = build.pad(source, low, high, fill)
    sizes, expressions = build.sizes_of(padded), build.loops(range(rank))
    for d, axis in enumerate(axes):
        span = dilation[d] * (kernel[d] - 1) + 1
        sizes[axis] = build.add_sizes(build.divide_size(build.add_sizes(sizes[axis], -span), strides[d]), 1)
        expressions[axis] = build.loop(axis) * strides[d] + build.loop(rank + d) * dilation[d]
    destination = build.filled(sizes, start)
    # No operand has the shape of the window: an empty tensor states how far its loops run.
    window = build.empty(list(kernel), source.type.element_type)
    return build.generic(
        [(padded, expressions), (window, build.loops(range(rank, rank + count)))],
        [(destination, build.loops(range(rank)))],
        ["parallel"] * rank + ["reduction"] * count,
        lambda item, _, total: combine(item, total),
    )[0]
