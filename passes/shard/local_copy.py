"""An op as one rank runs it: the same op, with the types and the stated extents of its slices."""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.passes.shard.loops.nest import Nest, Stated
from lowerkit.passes.shard.shardings import Placed, Shared, Split, local_type, parts_of


def localize(op: ir.Operation, nest: Nest, placed: Placed, ranks: int) -> None:
    """Gives an op whose results still have whole types those of one rank, and attributes that agree with them."""
    for result, held in zip(op.results, placed.results, strict=True):
        result.set_type(local_type(result, held, ranks))
    loop = nest.shared(placed)
    slices = [held for held in (*placed.operands, *placed.results) if isinstance(held, Split | Shared)]
    for stated in nest.stated:
        if stated.loop == loop:
            _divide(op, stated, parts_of(slices[0], ranks))


def _divide(op: ir.Operation, stated: Stated, parts: int) -> None:
    """An extent that an attribute states becomes that of one rank."""
    attribute = op.attributes[stated.name]
    if stated.place is None:
        number = ir.IntegerAttr(attribute)
        op.attributes[stated.name] = ir.IntegerAttr.get(number.type, number.value // parts)
    else:
        sizes = list(ir.DenseI64ArrayAttr(attribute))
        sizes[stated.place] //= parts
        op.attributes[stated.name] = ir.DenseI64ArrayAttr.get(sizes)
