"""Look-ups as a linalg.generic over the result that extracts from the table: of slices, and of single elements."""

from __future__ import annotations

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.mlir import ir


def gather(data: ir.Value, indices: ir.Value, axis: int) -> ir.Value:
    """Takes slices of ``data``; an index below 0 counts from the end, and one out of range is clamped."""
    count = indices.type.rank
    table = build.sizes_of(data)
    sizes = [*table[:axis], *build.sizes_of(indices), *table[axis + 1 :]]

    def take(position: ir.Value) -> ir.Value:
        before = [build.loop_index(i) for i in range(axis)]
        after = [build.loop_index(axis + count + i) for i in range(data.type.rank - axis - 1)]
        return build.extract(data, [*before, _within(position, table[axis]), *after])

    expressions = build.loops(range(axis, axis + count))
    return build.map_elements([(indices, expressions)], sizes, data.type.element_type, take)


def gather_elements(data: ir.Value, indices: ir.Value, axis: int) -> ir.Value:
    """Takes for each element of ``indices`` the one of ``data`` that stands there along ``axis``; indices as above.

    Args:
        data: the table.
        indices: integers, of the rank of ``data``, and no larger than it in any other dim.
        axis: the indexed dim of ``data``.
    """
    sizes, limit = build.sizes_of(indices), build.size_of(data, axis)

    def take(position: ir.Value) -> ir.Value:
        place = [build.loop_index(i) for i in range(len(sizes))]
        place[axis] = _within(position, limit)
        return build.extract(data, place)

    return build.map_elements([(indices, build.loops(range(len(sizes))))], sizes, data.type.element_type, take)


def _within(position: ir.Value, limit: build.Size) -> ir.Value:
    """Returns an index as a place in ``0 ... limit - 1``, so that nothing outside is read."""
    size = build.as_index(limit)
    return scalar.within(scalar.from_the_front(scalar.convert(position, ir.IndexType.get()), size), size)
