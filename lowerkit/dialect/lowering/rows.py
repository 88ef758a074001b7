"""Softmax and norms: statistics of rows in the compute type, then one pass over the elements."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.types import compute_type
from lowerkit.dialect.window import channel_axis
from lowerkit.mlir import ir

Affine = tuple[ir.Value, Sequence[ir.AffineExpr]]


def softmax(source: ir.Value, axis: int, log: bool) -> ir.Value:
    """Softmax or log-softmax along ``axis``."""
    element = source.type.element_type
    wide = compute_type(element)
    rank = source.type.rank
    every, kept = build.loops(range(rank)), build.loops([other for other in range(rank) if other != axis])
    sizes = build.sizes_of(source)

    def larger(item: ir.Value, best: ir.Value) -> ir.Value:
        return scalar.maximum(scalar.convert(item, wide), best)

    peak = build.reduce_rows(source, [axis], scalar.lowest(wide), larger)

    def shift(item: ir.Value, best: ir.Value) -> ir.Value:
        difference = scalar.subtract(scalar.convert(item, wide), best)
        return difference if log else scalar.exp(difference)

    shifted = build.map_elements([(source, every), (peak, kept)], sizes, wide, shift)

    def accumulate(item: ir.Value, total: ir.Value) -> ir.Value:
        return scalar.add(total, scalar.exp(item) if log else item)

    total = build.reduce_rows(shifted, [axis], scalar.constant(0, wide), accumulate)

    def finish(item: ir.Value, row: ir.Value) -> ir.Value:
        result = scalar.subtract(item, scalar.log(row)) if log else scalar.divide(item, row)
        return scalar.convert(result, element)

    return build.map_elements([(shifted, every), (total, kept)], sizes, element, finish)


def layer_norm(
    source: ir.Value, scale: ir.Value | None, bias: ir.Value | None, normalized_rank: int, epsilon: float
) -> ir.Value:
    """Normalizes over the last dimensions."""
    rank = source.type.rank
    axes = list(range(rank - normalized_rank, rank))
    return _normalize(source, axes, epsilon, _affine(scale, axes), _affine(bias, axes), centre=True)


def rms_norm(source: ir.Value, scale: ir.Value | None, normalized_rank: int, epsilon: float) -> ir.Value:
    """Divides by the root mean square over the last dimensions."""
    rank = source.type.rank
    axes = list(range(rank - normalized_rank, rank))
    return _normalize(source, axes, epsilon, _affine(scale, axes), None, centre=False)


def group_norm(
    source: ir.Value,
    scale: ir.Value | None,
    bias: ir.Value | None,
    *,
    groups: int,
    epsilon: float,
    channels_last: bool,
) -> ir.Value:
    """Normalizes each group of channels, with the channel dimension split into (group, channel within it)."""
    axis = channel_axis(source.type.rank, channels_last)
    within = build.divide_size(build.size_of(source, axis), groups)
    split = build.expand_dimension(source, axis, [groups, within])
    axes = [other for other in range(split.type.rank) if other not in (0, axis)]

    def per_channel(value: ir.Value | None) -> Affine | None:
        if value is None:
            return None
        channels = build.divide_size(build.size_of(value, 0), groups)
        return build.expand_dimension(value, 0, [groups, channels]), build.loops([axis, axis + 1])

    result = _normalize(split, axes, epsilon, per_channel(scale), per_channel(bias), centre=True)
    return build.collapse_dimensions(result, axis, 2)


def _affine(value: ir.Value | None, axes: Sequence[int]) -> Affine | None:
    return None if value is None else (value, build.loops(axes))


def _normalize(
    source: ir.Value, axes: Sequence[int], epsilon: float, scale: Affine | None, bias: Affine | None, *, centre: bool
) -> ir.Value:
    """``(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias`` over ``axes``; mean is 0 without centre."""
    element = source.type.element_type
    wide = compute_type(element)
    rank = source.type.rank
    sizes = build.sizes_of(source)
    every, kept = build.loops(range(rank)), build.loops([axis for axis in range(rank) if axis not in axes])
    row = [(sizes[axis]) for axis in range(rank) if axis not in axes]
    zero = scalar.constant(0, wide)
    number = build.product([sizes[axis] for axis in axes])
    count = scalar.constant(number, wide) if isinstance(number, int) else scalar.convert(number, wide)

    means: list[Affine] = []
    if centre:
        total = build.reduce_rows(source, axes, zero, lambda x, t: scalar.add(t, scalar.convert(x, wide)))
        rows = build.loops(range(len(row)))
        mean = build.map_elements([(total, rows)], row, wide, lambda t: scalar.divide(t, count))
        means = [(mean, kept)]

    def difference(items: Sequence[ir.Value]) -> ir.Value:
        value = scalar.convert(items[0], wide)
        return scalar.subtract(value, items[1]) if centre else value

    def square(*items: ir.Value) -> ir.Value:
        value = difference(items)
        return scalar.add(items[-1], scalar.multiply(value, value))

    iterators = ["reduction" if axis in axes else "parallel" for axis in range(rank)]
    squares = build.generic([(source, every), *means], [(build.filled(row, zero), kept)], iterators, square)[0]

    def finish(*items: ir.Value) -> ir.Value:
        variance = scalar.divide(items[1 + len(means)], count)
        root = scalar.sqrt(scalar.add(variance, scalar.constant(epsilon, wide)))
        result = scalar.divide(difference(items), root)
        rest = list(items[2 + len(means) :])
        if scale is not None:
            result = scalar.multiply(result, scalar.convert(rest.pop(0), wide))
        if bias is not None:
            result = scalar.add(result, scalar.convert(rest.pop(0), wide))
        return scalar.convert(result, element)

    affine = [operand for operand in (scale, bias) if operand is not None]
    return build.map_elements([(source, every), *means, (squares, kept), *affine], sizes, element, finish)
