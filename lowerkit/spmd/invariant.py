"""What a program has to be to give the same bits on every mesh, and what that costs.

Products that are split along K are sums in one order (:mod:`lowerkit.passes.shard.fix_reductions`), and the kernels of
the CPU sum in an order that hangs on the length of a sum alone. Everything else is refused by name: targets of which
that is not known, and collectives that add floats, whose order is that of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.dialect.types import is_float
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import element_of, nested_operations, operations
from lowerkit.passes.shard.invariance import is_exact
from lowerkit.passes.source_location import describe
from lowerkit.spmd.cost.machine import DeviceModel
from lowerkit.spmd.cost.program_cost import in_memory
from lowerkit.spmd.cost.work import WorkCounter

_REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_IN_ORDER = frozenset({"sum", "product"})
_DEVICE = DeviceModel(flops=100e9, bandwidth=50e9, memory=0)
"""A core of a processor: products of f32 from L2. What counts is its ratio, that of many devices is not far from it."""
_UNKNOWN = 64
"""What an extent counts as that is known at run time."""


def require_known_targets(names: Sequence[str]) -> None:
    """Raises where accelerators would compute parts of a program that is to give the same bits on every mesh.

    Raises:
        UnsupportedError: LK4007, with their names.
    """
    if names:
        raise UnsupportedError(
            "LK4007",
            f"the same bits on every mesh are asked for, and of the kernels of {', '.join(names)} it is not known that "
            "they sum in one order, whatever part of a model a rank has",
            hint="compile for the CPU alone, as in --target cpu, or leave --invariant out",
        )


def require_one_order(module: ir.Module) -> None:
    """Raises where a collective of a sharded program adds or multiplies floats that more than one rank has.

    Raises:
        UnsupportedError: LK4007, with every such collective.
    """
    functions = [op.operation for op in module.body.operations]
    ops = [each for function in functions for each in nested_operations(function)]
    found = [
        f"{ir.StringAttr(op.attributes['kind']).value} along {ir.StringAttr(op.attributes['axis']).value!r} at "
        f"{describe(op)}"
        for op in ops
        if op.name == "lk.collective_start" and _adds_floats(op)
    ]
    if found:
        raise UnsupportedError(
            "LK4007",
            f"{len(found)} collectives add floats in an order that is that of the ranks, and the same bits on every "
            f"mesh are asked for: {found[0]}",
            details=found[1:],
            hint="give these modules the choice column or replicate, or leave --invariant out",
        )


def _adds_floats(start: ir.Operation) -> bool:
    kind, reduction = (ir.StringAttr(start.attributes[name]).value for name in ("kind", "reduction"))
    summed = kind in _REDUCING and reduction in _IN_ORDER and is_float(element_of(start.operands[0]))
    return summed and not is_exact(start.operands[0])


def seconds_of(module: ir.Module) -> float:
    """Returns what the ops of a program take by the cost model of a core, collectives left out and each body counted
    once; meant to be compared with another program's."""
    counter = WorkCounter(_UNKNOWN)
    blocks = [op.operation.regions[0].blocks[0] for op in module.body.operations]
    work = [counter.of(op, in_memory) for block in blocks for op in operations(block)]
    return sum(_DEVICE.seconds(each.flops, each.moved) for each in work)
