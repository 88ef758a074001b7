"""A program that is split on trial: what each rank then holds, computes and waits for.

The program is short (:mod:`lowerkit.spmd.auto.shorten`); whatever a module costs counts as often as it stands for
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.function_by_function import run_on_functions
from lowerkit.passes.rewriting import defining_op, main_block, operations, weight_symbol
from lowerkit.passes.shard.plan import ShardingPlan
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.passes.source_location import describe
from lowerkit.program.weights import WeightStore
from lowerkit.spmd.auto.shorten import Counts
from lowerkit.spmd.auto.stages import Load
from lowerkit.spmd.cost.machine import DeviceModel, Links
from lowerkit.spmd.cost.program_cost import ProgramCost, cost_of
from lowerkit.spmd.cost.work import WorkCounter

SYMBOLIC_EXTENT = 64
"""What an extent counts as that is not a number."""


@dataclass(frozen=True)
class Machine:
    """What a program is to run on.

    Attributes:
        device: of each rank.
        links: between the ranks.
        mesh: name and size of each axis.
    """

    device: DeviceModel
    links: Links
    mesh: Mapping[str, int]


@dataclass(frozen=True)
class Estimate:
    """What one rank does in one run of a program.

    Attributes:
        seconds: of the whole.
        weight_bytes: that it holds.
        collectives: how many it takes part in.
    """

    seconds: float
    weight_bytes: int
    collectives: int

    @property
    def order(self) -> tuple[float, int]:
        """Of two plans the better one has the smaller: time is worth as much as memory, each as a share of itself."""
        return (self.seconds * max(self.weight_bytes, 1), self.collectives)


@dataclass(frozen=True)
class Trial:
    """A canonical program as the ranks of the axes so far run it.

    Attributes:
        module: not to be changed.
        context: what passes may know beside it; the weights are its own.
        counts: how many modules each module stands for.
        machine: what it runs on.
    """

    module: ir.Module
    context: PassContext
    counts: Counts
    machine: Machine

    @property
    def weights(self) -> WeightStore:
        """The store that the module names."""
        return self.context.weights

    def split(self, plan: ShardingPlan) -> Trial | None:
        """Returns the program split by a plan, whose report is filled in; None where that cannot be."""
        plan.report.clear()
        module = copy_of(self.module)
        context = replace(self.context, weights=self.weights.fork(), sharding=plan)
        try:
            run_on_functions(ShardProgram(), module, context)
        except UnsupportedError as error:
            if error.code != "LK4007":
                raise
            return None
        return Trial(module, context, self.counts, self.machine)

    @cached_property
    def cost(self) -> ProgramCost:
        """What a rank does in one run, op by op."""
        machine = self.machine
        return cost_of(
            self.module, machine.mesh, machine.device, machine.links, count=self.counts.of, dynamic=SYMBOLIC_EXTENT
        )

    @cached_property
    def estimate(self) -> Estimate:
        """What a rank does in one run."""
        collectives = sum(self.counts.of(each.module) for each in self.cost.collectives)
        return Estimate(self.cost.seconds, self.cost.weight_bytes, collectives)

    def loads(self, without: str = "") -> dict[str, Load]:
        """Returns what each module costs by itself, in program order: seconds, and the bytes that it reads first.

        These are weights and states.

        Collectives along the axis ``without`` are left out.
        """
        loads: dict[str, Load] = {}
        counter = WorkCounter(SYMBOLIC_EXTENT)
        seen: set[str] = set()
        work = [(each.module, each.span.seconds) for each in self.cost.compute]
        work += [(each.module, each.span.waited) for each in self.cost.collectives if each.axis != without]
        for path, seconds in work:
            before = loads.get(path, (0.0, 0))
            loads[path] = (before[0] + seconds / self.counts.of(path), before[1])
        for op in operations(main_block(self.module)):
            for operand in op.operands:
                symbol = _symbol(operand)
                if symbol is not None and symbol not in seen:
                    seen.add(symbol)
                    before = loads.setdefault(path := describe(op).module_path, (0.0, 0))
                    loads[path] = (before[0], before[1] + counter.nbytes(operand))
        return loads


def _symbol(value: ir.Value) -> str | None:
    """Returns the name of the weight or the state that a value is; None of all others."""
    owner = defining_op(value)
    if owner is not None and owner.name == "lk.state_read":
        return ir.StringAttr(owner.attributes["symbol"]).value
    return weight_symbol(value)


def copy_of(module: ir.Module) -> ir.Module:
    """Returns a module with copies of the functions of another one."""
    with module.context, ir.Location.unknown():
        copy = ir.Module.create()
        with ir.InsertionPoint(copy.body):
            for op in module.body.operations:
                op.operation.clone()
    return copy
