"""Which values the ranks of a mesh hold differently: parts, and terms of sums."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lowerkit.mlir import ir
from lowerkit.program.program import Program
from lowerkit.program.weights import WeightStore

_MADE_WHOLE = ("all_reduce", "all_gather")


def held_apart(program: Program) -> set[ir.Value]:
    """Returns the values of ``@main`` of a sharded program that depend on the rank, at any stage.

    What the program is given, all ranks have alike; so do the bodies of branches and loops.
    """
    functions = {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation.regions[0].blocks[0]
        for op in program.module.body.operations
    }
    return _apart_in(functions["main"], (), functions, program.weights)


def _apart_in(
    block: ir.Block, given: Collection[ir.Value], functions: Mapping[str, ir.Block], weights: WeightStore
) -> set[ir.Value]:
    apart = set(given)
    for op in (each.operation for each in block.operations):
        if op.name == "lk.weight":
            if weights.shard(ir.StringAttr(op.attributes["symbol"]).value) is not None:
                apart.update(op.results)
        elif op.name == "lk.collective_done":
            kind = ir.StringAttr(op.operands[0].owner.operation.attributes["kind"]).value
            apart.update(() if kind in _MADE_WHOLE else op.results)
        elif op.name == "lk.call" and (body := functions.get(ir.StringAttr(op.attributes["callee"]).value)) is not None:
            pairs = zip(body.arguments, op.operands, strict=True)
            inner = _apart_in(body, [argument for argument, value in pairs if value in apart], functions, weights)
            returned = list(body.operations)[-1].operation.operands
            apart.update(result for result, value in zip(op.results, returned, strict=True) if value in inner)
        elif op.name == "lk.collective_start" or any(operand in apart for operand in op.operands):
            apart.update(op.results)
    return apart
