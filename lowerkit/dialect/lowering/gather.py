"""Gather as a linalg.generic over the result that extracts from the table."""

from __future__ import annotations

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.mlir import ir


def gather(data: ir.Value, indices: ir.Value, axis: int) -> ir.Value:
    """Takes slices of ``data``; an index out of range is clamped, so that nothing outside is read."""
    count, index = indices.type.rank, ir.IndexType.get()
    table = build.sizes_of(data)
    sizes = [*table[:axis], *build.sizes_of(indices), *table[axis + 1 :]]
    limit = table[axis]

    def take(position: ir.Value) -> ir.Value:
        size = build.as_index(limit)
        zero = build.constant_index(0)
        place = scalar.convert(position, index)
        place = scalar.select(scalar.compare("lt", place, zero), scalar.add(place, size), place)
        last = scalar.subtract(size, build.constant_index(1))
        place = scalar.maximum(scalar.minimum(place, last), zero)
        before = [build.loop_index(i) for i in range(axis)]
        after = [build.loop_index(axis + count + i) for i in range(data.type.rank - axis - 1)]
        return build.extract(data, [*before, place, *after])

    expressions = build.loops(range(axis, axis + count))
    return build.map_elements([(indices, expressions)], sizes, data.type.element_type, take)
