"""Stable bottom-up merge sort.

Vocabulary: a run is a sorted stretch of a row; level l merges neighbouring runs of width 2^l. Each level reads the
items, merges them into the spare buffers and copies them back, so that every loop updates its buffers in place.
Steps: rows -> levels -> positions of the output; at the first position of a pair of runs the two cursors are reset.
Moves per row of n: ``4 n ceil(log2 n)`` values and indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.lowering.loops import for_each_row, for_loop
from lowerkit.dialect.types import is_float
from lowerkit.mlir import arith, ir, math

Place = Callable[[ir.Value], list[ir.Value]]


def sort(source: ir.Value, axis: int, descending: bool) -> list[ir.Value]:
    """Returns (values, indices) in order along ``axis``."""
    element, index = source.type.element_type, ir.IntegerType.get_signless(64)
    sizes = build.sizes_of(source)
    every = build.loops(range(len(sizes)))
    length = build.as_index(sizes[axis])
    levels = _levels(sizes[axis])
    values = build.map_elements([(source, every)], sizes, element, lambda item: item)
    indices = build.map_elements([], sizes, index, lambda: scalar.convert(build.loop_index(axis), index))
    spares = [build.empty(sizes, element), build.empty(sizes, index)]

    def row(at: Place, carried: list[ir.Value]) -> Sequence[ir.Value]:
        def level(number: ir.Value, buffers: list[ir.Value]) -> list[ir.Value]:
            width = arith.ShLIOp(build.constant_index(1), number).result
            merged = _merge_runs(buffers, at, length, width, descending)
            return _copy_back(buffers[:2], merged, at, length)

        return for_loop(levels, carried, level)

    return for_each_row(sizes, axis, [values, indices, *spares], row)[:2]


def topk(source: ir.Value, k: int, axis: int, largest: bool) -> list[ir.Value]:
    """Returns the first ``k`` of the sorted values and indices."""
    sizes = build.sizes_of(source)
    sizes[axis] = k
    offsets = [0] * len(sizes)
    return [build.extract_slice(result, offsets, sizes) for result in sort(source, axis, descending=largest)]


def _levels(size: build.Size) -> build.Size:
    if isinstance(size, int):
        return max(size - 1, 0).bit_length()
    # 64 - leading zeros of (n - 1); a row of no elements would count 64 levels over nothing.
    wide = ir.IntegerType.get_signless(64)
    last = scalar.convert(build.add_sizes(size, -1), wide)
    bits = scalar.subtract(scalar.constant(64, wide), math.CountLeadingZerosOp(last).result)
    return scalar.convert(bits, ir.IndexType.get())


def _goes_first(right: ir.Value, left: ir.Value, descending: bool) -> ir.Value:
    """Whether the item of the right run goes strictly before that of the left run; NaN is the largest."""
    first = scalar.compare("gt" if descending else "lt", right, left)
    if not is_float(right.type):
        return first
    larger, smaller = (right, left) if descending else (left, right)
    return scalar.either(first, scalar.both(scalar.is_nan(larger), scalar.negate(scalar.is_nan(smaller))))


def _merge_runs(
    buffers: list[ir.Value], at: Place, length: ir.Value, width: ir.Value, descending: bool
) -> list[ir.Value]:
    """Merges pairs of runs of the items into the spare buffers and returns these."""
    values, indices, spare_values, spare_indices = buffers
    zero, one, two = (build.constant_index(number) for number in range(3))
    pair = scalar.multiply(width, two)
    last = scalar.subtract(length, one)

    def step(position: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        left, right, to_values, to_indices = carried
        begin = scalar.multiply(arith.DivUIOp(position, pair).result, pair)
        middle = scalar.minimum(scalar.add(begin, width), length)
        end = scalar.minimum(scalar.add(begin, pair), length)
        fresh = scalar.compare("eq", position, begin)
        left, right = scalar.select(fresh, begin, left), scalar.select(fresh, middle, right)
        # A cursor at the end of its run may stand outside of the row: read something inside, and ignore it.
        left_at, right_at = at(scalar.minimum(left, last)), at(scalar.minimum(right, last))
        left_item, right_item = build.extract(values, left_at), build.extract(values, right_at)
        left_done = scalar.compare("ge", left, middle)
        right_left = scalar.compare("lt", right, end)
        wins = scalar.either(left_done, _goes_first(right_item, left_item, descending))
        take_right = scalar.both(right_left, wins)
        item = scalar.select(take_right, right_item, left_item)
        origin = scalar.select(take_right, build.extract(indices, right_at), build.extract(indices, left_at))
        return [
            scalar.select(take_right, left, scalar.add(left, one)),
            scalar.select(take_right, scalar.add(right, one), right),
            build.insert(item, to_values, at(position)),
            build.insert(origin, to_indices, at(position)),
        ]

    return for_loop(length, [zero, zero, spare_values, spare_indices], step)[2:]


def _copy_back(items: list[ir.Value], merged: list[ir.Value], at: Place, length: ir.Value) -> list[ir.Value]:
    def step(position: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        place = at(position)
        return [
            build.insert(build.extract(source, place), destination, place)
            for source, destination in zip(merged, carried, strict=True)
        ]

    return [*for_loop(length, items, step), *merged]
