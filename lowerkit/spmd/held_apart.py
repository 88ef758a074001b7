"""Which values the ranks of a mesh hold differently: parts, and terms of sums."""

from __future__ import annotations

from collections.abc import Mapping

from lowerkit.mlir import ir
from lowerkit.program.program import Program
from lowerkit.program.weights import WeightStore

_MADE_ALIKE = ("all_reduce", "all_gather", "broadcast")

Axes = frozenset[str]
"""Axes of the mesh along which ranks hold a value differently."""


def held_apart(program: Program) -> set[ir.Value]:
    """Returns the values of ``@main`` of a sharded program that depend on the rank, at any stage.

    What the program is given, all ranks have alike; so do the bodies of branches and loops.
    """
    functions = {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation.regions[0].blocks[0]
        for op in program.module.body.operations
    }
    states = {name: frozenset(cut.axis for cut in cuts) for name, cuts in program.state_cuts.items()}
    found = _apart_in(functions["main"], {}, functions, program.weights, states)
    return {value for value, axes in found.items() if axes}


def _apart_in(
    block: ir.Block,
    given: Mapping[ir.Value, Axes],
    functions: Mapping[str, ir.Block],
    weights: WeightStore,
    states: Mapping[str, Axes],
) -> dict[ir.Value, Axes]:
    apart = dict(given)
    nothing: Axes = frozenset()
    for op in (each.operation for each in block.operations):
        read = nothing.union(*(apart.get(operand, nothing) for operand in op.operands))
        if op.name == "lk.weight":
            shard = weights.shard(ir.StringAttr(op.attributes["symbol"]).value)
            read = nothing if shard is None else frozenset(name for name, _ in shard.axes)
        elif op.name == "lk.state_read":
            read = states.get(ir.StringAttr(op.attributes["symbol"]).value, nothing)
        elif op.name == "lk.collective_start":
            axis = {ir.StringAttr(op.attributes["axis"]).value}
            alike = ir.StringAttr(op.attributes["kind"]).value in _MADE_ALIKE
            read = read - axis if alike else read | axis
        elif op.name == "lk.call" and (body := functions.get(ir.StringAttr(op.attributes["callee"]).value)) is not None:
            own = {
                argument: apart.get(value, nothing) for argument, value in zip(body.arguments, op.operands, strict=True)
            }
            inner = _apart_in(body, own, functions, weights, states)
            returned = list(body.operations)[-1].operation.operands
            apart.update(
                (result, inner.get(value, nothing)) for result, value in zip(op.results, returned, strict=True)
            )
            continue
        apart.update(dict.fromkeys(op.results, read))
    return apart
