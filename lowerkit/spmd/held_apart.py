"""Which values the ranks of a mesh hold differently: parts, and terms of sums."""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.program.weights import WeightStore

_MADE_WHOLE = ("all_reduce", "all_gather")


def held_apart(block: ir.Block, weights: WeightStore) -> set[ir.Value]:
    """Returns the values of a function that depend on the rank; what it is given, all ranks have alike.

    Args:
        block: of a sharded function, at any stage.
        weights: say which ``lk.weight`` the ranks share.
    """
    apart: set[ir.Value] = set()
    for op in (each.operation for each in block.operations):
        if op.name == "lk.weight":
            differs = weights.shard(ir.StringAttr(op.attributes["symbol"]).value) is not None
        elif op.name == "lk.collective_done":
            kind = ir.StringAttr(op.operands[0].owner.operation.attributes["kind"]).value
            differs = kind not in _MADE_WHOLE
        else:
            differs = op.name == "lk.collective_start" or any(operand in apart for operand in op.operands)
        if differs:
            apart.update(op.results)
    return apart
