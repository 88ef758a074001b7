"""Gives each accelerator the ops that it takes, in functions as large as can be.

Steps for each function of the host:
    1. offer each op to the accelerators in their order; the first that takes it has it. What one of them gives back
       later is offered to those behind it, and the sets are made anew;
    2. merge the sets of ops that feed one another, then any two of one accelerator, wherever no path leaves the merged
       set and comes back to it (:class:`~lowerkit.passes.partition.dependencies.Groups`);
    3. dissolve sets that are not worth what crosses to them;
    4. make a function of each; an accelerator that does not compile it after all gives it back;
    5. write down where each op runs, and why not elsewhere.

Bytes: each operand and result of a function crosses once, weights once and for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import ClassVar

from lowerkit.dialect.base import LkOperation
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import as_elementwise
from lowerkit.passes.partition.accelerator import KEPT, Accelerator, Placement
from lowerkit.passes.partition.dependencies import Groups, data_values, is_transparent, predecessors, put_in_order
from lowerkit.passes.partition.outlining import Outlined, boundary, call, outline, too_many_types
from lowerkit.passes.rewriting import OpSet, erase_dead, is_used, main_block, operations
from lowerkit.passes.source_location import describe

_NOT_OFFERED = frozenset(
    {
        "arith.constant", "func.return", "lk.state_read", "lk.state_write", "lk.check_indices", "lk.call",
        "lk.cond", "lk.while", "lk.collective_start", "lk.collective_done",
    }
)  # fmt: skip
"""What stays with the host whatever it computes: data, states, control flow, collectives."""


@dataclass(frozen=True)
class Partition(Pass):
    """Outlines what ``context.accelerators`` take; nothing without any. Precondition: stage canonical."""

    name: ClassVar[str] = "partition"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        if not context.accelerators:
            return False
        block = main_block(module)
        partitioner = _Partitioner(module, block, context)
        while partitioner.offer():
            partitioner.merge()
            partitioner.outline()
        partitioner.write_ledger()
        partitioner.call()
        return True


@dataclass
class _Set:
    """Ops of one accelerator, by number, and their function."""

    accelerator: Accelerator
    members: list[int] = field(default_factory=list[int])
    name: str = ""


class _Partitioner:
    def __init__(self, module: ir.Module, block: ir.Block, context: PassContext) -> None:
        self.module = module
        self.block = block
        self.context = context
        self.ops = [op for op in operations(block) if not is_transparent(op)]
        self.before = predecessors(self.ops)
        self.groups = Groups(self.before)
        self.taken: dict[int, Accelerator] = {}
        self.refusals: list[list[tuple[str, str]]] = [[] for _ in self.ops]
        self.made: list[tuple[_Set, Outlined]] = []

    def offer(self) -> bool:
        """Offers what nobody has to whom it was not offered yet; returns whether anything was taken."""
        free = [number for number in range(len(self.ops)) if number not in self.taken]
        for number in free:
            op = self.ops[number]
            if op.name in _NOT_OFFERED:
                continue
            kept = self._kept(op)
            asked = {name for name, _ in self.refusals[number]}
            for accelerator in self.context.accelerators:
                if accelerator.name in asked:
                    continue
                reason = f"{KEPT}{kept}" if kept else accelerator.refusal(op)
                if reason is None:
                    self.taken[number] = accelerator
                    break
                self.refusals[number].append((accelerator.name, reason))
        return any(number in self.taken for number in free)

    def merge(self) -> None:
        self.groups = Groups(self.before)
        for number in range(len(self.ops)):
            accelerator = self.taken.get(number)
            near = [other for other in sorted(self.before[number]) if self.taken.get(other) is accelerator]
            if accelerator is not None and near and not self.groups.merge([number, *near]):
                for other in near:
                    self.groups.merge([number, other])
        for accelerator in self.context.accelerators:
            roots = sorted({self.groups.root(number) for number, other in self.taken.items() if other is accelerator})
            for before, after in pairwise(roots):
                self.groups.merge([before, after])

    def outline(self) -> None:
        for _, earlier in self.made:
            earlier.function.erase()
        self.made = []
        found: dict[int, _Set] = {}
        for number, accelerator in sorted(self.taken.items(), key=itemgetter(0)):
            found.setdefault(self.groups.root(number), _Set(accelerator)).members.append(number)
        prefix = _name_of(self.block)
        for each in found.values():
            members = [self.ops[number] for number in each.members]
            reason = too_many_types(members) or each.accelerator.unprofitable(members, _crossing(members))
            if reason is None:
                each.name = f"{each.accelerator.name}_{prefix}{len(self.made)}"
                outlined = outline(
                    self.module,
                    members,
                    each.name,
                    each.accelerator.name,
                    takes_indices=not each.accelerator.by_regions,
                )
                reason = each.accelerator.function_refusal(outlined.function)
                if reason is None:
                    self.made.append((each, outlined))
                    continue
                outlined.function.erase()
            for number in each.members:
                del self.taken[number]
                self.refusals[number].append((each.accelerator.name, reason))

    def write_ledger(self) -> None:
        """Before the calls replace the ops."""
        function_of = {number: each.name for each, _ in self.made for number in each.members}
        for number, op in enumerate(self.ops):
            if op.name in _NOT_OFFERED:
                continue
            info = describe(op)
            accelerator = self.taken.get(number)
            self.context.placements.append(
                Placement(
                    shown_name(op),
                    info.node,
                    f"{info.file}:{info.line}" if info.file else "",
                    op_flops(op),
                    self._crossing_at(number),
                    accelerator.name if accelerator is not None else "",
                    function_of.get(number, ""),
                    tuple(self.refusals[number]),
                )
            )

    def call(self) -> None:
        replaced: dict[ir.Value, ir.Value] = {}
        for each, outlined in self.made:
            replaced |= call(outlined, [self.ops[number] for number in each.members], replaced)
        members = OpSet(self.ops[number] for each, _ in self.made for number in each.members)
        for op in reversed(operations(self.block)):
            dead = is_transparent(op) and not any(is_used(result) for result in op.results)
            if dead or op in members:
                op.erase()
        put_in_order(self.block)
        erase_dead(self.block)

    def _kept(self, op: ir.Operation) -> str | None:
        names = {op.name, op.name.removeprefix("lk."), shown_name(op), describe(op).node}
        return next((each for each in self.context.keep_on_host if each in names), None)

    def _crossing_at(self, number: int) -> int:
        """Bytes that go from one memory to another beside this op."""
        here = self.taken.get(number)
        total = 0
        for value in data_values(self.ops[number]):
            place = next((place for place in self.before[number] if value in list(self.ops[place].results)), None)
            there = self.taken.get(place) if place is not None else None
            total += tensor_bytes(value) if there is not here else 0
        return total


def shown_name(op: ir.Operation) -> str:
    """Returns what people call an op: ``elementwise``, ``reshape``, else its name in the IR."""
    if as_elementwise(op) is not None:
        return "elementwise"
    return "reshape" if op.name in ("tensor.collapse_shape", "tensor.expand_shape") else op.name


def op_flops(op: ir.Operation) -> int:
    """Returns the floating-point or integer operations of an op; an open extent counts as 1."""
    opview = op.opview
    if isinstance(opview, LkOperation):
        count = opview.flops()
        return count if isinstance(count, int) else 0
    view = as_elementwise(op)
    if view is None or op.name != "linalg.generic":
        return 0
    steps = sum(inner.name not in ("linalg.yield", "arith.constant", "linalg.index") for inner in operations(view.body))
    return steps * math.prod(max(extent, 1) for extent in view.shape)


def tensor_bytes(value: ir.Value) -> int:
    """Returns the bytes of a tensor; an open extent counts as 1."""
    kind = ir.RankedTensorType(value.type)
    text = str(kind.element_type)
    bits = int("".join(letter for letter in text if letter.isdigit()) or 64)
    return math.prod(max(extent, 1) for extent in kind.shape) * max(bits // 8, 1)


def _crossing(members: Sequence[ir.Operation]) -> int:
    operands, results = boundary(members)
    return sum(tensor_bytes(value) for value in (*operands, *results))


def _name_of(block: ir.Block) -> str:
    name = ir.StringAttr(block.owner.operation.attributes["sym_name"]).value
    return "" if name == "main" else f"{name}_"
