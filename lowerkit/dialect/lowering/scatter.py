"""Scatter as loops over the updates that change a copy of the table."""

from __future__ import annotations

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.lowering.loops import for_loop
from lowerkit.dialect.types import compute_type, is_float
from lowerkit.mlir import ir, scf

_COMBINE = {"add": scalar.add, "mul": scalar.multiply, "max": scalar.maximum, "min": scalar.minimum}


def scatter(data: ir.Value, indices: ir.Value, updates: ir.Value, axis: int, kind: str) -> ir.Value:
    """Combines ``updates`` into a copy of ``data``; one whose index is out of range is left out."""
    sizes, count = build.sizes_of(data), indices.type.rank
    element, index = data.type.element_type, ir.IndexType.get()
    wide = compute_type(element) if is_float(element) else element
    copied = build.map_elements([(data, build.loops(range(len(sizes))))], sizes, element, lambda item: item)
    loops = build.sizes_of(updates)
    length = build.as_index(sizes[axis])

    def update(place: list[ir.Value], table: ir.Value) -> ir.Value:
        position = scalar.convert(build.extract(indices, place[axis : axis + count]), index)
        position = scalar.from_the_front(position, length)
        inside = scalar.is_within(position, length)
        branch = scf.IfOp(inside, [table.type], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            target = [*place[:axis], position, *place[axis + count :]]
            item = build.extract(updates, place)
            if kind != "set":
                old = scalar.convert(build.extract(table, target), wide)
                item = scalar.convert(_COMBINE[kind](old, scalar.convert(item, wide)), element)
            scf.YieldOp([build.insert(item, table, target)])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([table])
        return branch.operation.results[0]

    def nest(depth: int, place: list[ir.Value], table: ir.Value) -> ir.Value:
        if depth == len(loops):
            return update(place, table)
        return for_loop(loops[depth], [table], lambda i, carried: [nest(depth + 1, [*place, i], carried[0])])[0]

    return nest(0, [], copied)
