"""A look-up in a table whose rows the ranks share: each rank looks up what it has, and gives zeros for the rest.

Vocabulary
    start    number of the first row that a rank has; it has ``rows`` of them
    inside   whether an index names one of these

Steps: subtract the start from each index; look up row 0 for those outside; replace what they gave by zeros. The sum
over the ranks is the look-up, to the bit: the other terms are -0, which changes no number, nor the sign of a zero.
Indices below 0 count from the end of the whole table, so they are made positive first. Rows that pad the last part are
looked up by nobody.
"""

from __future__ import annotations

import numpy as np

from lowerkit.dialect import GatherOp
from lowerkit.mlir import arith, ir
from lowerkit.passes.elementwise import build_elementwise, identity_map
from lowerkit.passes.rewriting import element_of, empty_like, shape_of
from lowerkit.passes.shard.invariance import mark_exact
from lowerkit.passes.shard.parts import OwnParts


def own_look_up(parts: OwnParts, table: ir.Value, part: ir.Value, indices: ir.Value, location: ir.Location) -> ir.Value:
    """Returns this rank's term of ``lk.gather(table, indices)`` along the first dimension.

    Args:
        parts: makes what depends on the rank.
        table: the whole one.
        part: the rows of this rank.
        indices: of the whole table; every rank has them all.
        location: of the look-up.
    """
    whole, rows = shape_of(table)[0], shape_of(part)[0]
    integer = ir.IntegerType(element_of(indices))
    starts = np.arange(parts.ranks, dtype=f"int{integer.width}") * rows
    axes = list(range(len(shape_of(indices))))
    identity = identity_map(len(axes))

    def relative(scalars: list[ir.Value]) -> ir.Value:
        index, start = scalars
        below = arith.CmpIOp(arith.CmpIPredicate.slt, index, _number(0, integer)).result
        positive = arith.SelectOp(below, arith.AddIOp(index, _number(whole, integer)).result, index).result
        return arith.SubIOp(positive, start).result

    def is_inside(scalars: list[ir.Value]) -> list[ir.Value]:
        # One comparison: as an unsigned number an index before the start is larger than all others.
        return [arith.CmpIOp(arith.CmpIPredicate.ult, relative(scalars), _number(rows, integer)).result]

    def row(scalars: list[ir.Value]) -> list[ir.Value]:
        (inside,) = is_inside(scalars)
        return [arith.SelectOp(inside, relative(scalars), _number(0, integer)).result]

    def term(scalars: list[ir.Value]) -> list[ir.Value]:
        inside, found = scalars
        zero = arith.ConstantOp(found.type, ir.FloatAttr.get(found.type, -0.0)).result
        return [arith.SelectOp(inside, found, zero).result]

    with location:
        start = parts.row_of("first_row", starts)
        flag = empty_like(indices, axes, ir.IntegerType.get_signless(1))
        inside = build_elementwise([indices, start], [identity, ()], [flag], is_inside, location).results[0]
        place = empty_like(indices, axes, integer)
        places = build_elementwise([indices, start], [identity, ()], [place], row, location).results[0]
        found = GatherOp.build(part, places, axis=0)
        result_axes = list(range(len(shape_of(found))))
        result = empty_like(found, result_axes, element_of(found))
        made = build_elementwise([inside, found], [identity, identity_map(len(result_axes))], [result], term, location)
        mark_exact(made.results[0])
        return made.results[0]


def _number(value: int, kind: ir.Type) -> ir.Value:
    return arith.ConstantOp(kind, ir.IntegerAttr.get(kind, value)).result
