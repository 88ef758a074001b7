"""Cuts a program into the stages of a pipeline: a program for each, which the ranks along an axis run side by side.

Vocabulary
    stage     number of the rank along the pipeline axis that runs an op
    free      an op without a stage that reads inputs, weights and free ops alone: every stage that needs it runs it
    crossing  a value of one stage that a later one reads: it is sent, and received

Steps:
    1. give every op a stage: the one that the plan names for its module; an op that the plan does not name has the last
       stage of what it reads, or is free;
    2. copy the program once for each stage; keep its ops, and the free ones that they read. Extents are read at the
       arguments, which all stages are given, so that they are free;
    3. send a crossing right behind the op that makes it, and receive it at the same place of the program;
    4. broadcast each output from the stage that makes it, at the end.
Sends, receives and broadcasts stand in all stages in the order of the one program, so the first one that is not done
yet can always be done: no stage waits in a circle.

Bytes: each crossing once for each stage that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lowerkit.dialect import CollectiveDoneOp, CollectiveStartOp
from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.mlir import ir, tensor
from lowerkit.passes.rewriting import (
    captured_values,
    defining_op,
    element_of,
    has_effects,
    main_block,
    operations,
    tensor_type,
)
from lowerkit.passes.shard.open_extents import open_shape, read_at_arguments
from lowerkit.passes.shard.plan import StageEntry, StagePlan
from lowerkit.passes.source_location import describe

if TYPE_CHECKING:
    from lowerkit.program.program import Program

FREE = -1
"""The stage of what every stage may run."""


def split_stages(program: Program, plan: StagePlan) -> list[Program]:
    """Returns the program of each stage of a canonical ``program``, which is not changed.

    Raises:
        UsageError: LK1011, the plan names no module that there is, or a stage that reads from a later one.
        UnsupportedError: LK4007, what crosses between stages is no tensor, or has a shape that depends on data.
    """
    whole = program.copy()
    with program.context, ir.Location.unknown():
        read_at_arguments(main_block(whole.module), lambda op: _entry(plan, op) is not None)
        stages = _Stages(main_block(whole.module), plan)
        programs: list[Program] = []
        for number in range(plan.ranks):
            own = whole.copy()
            _Cut(main_block(own.module), stages, plan, number).run()
            programs.append(replace(own, place={plan.axis: number}))
    return programs


class _Stages:
    """Which stage runs each op of a block, by its number in program order, and what crosses between stages.

    Attributes:
        of: the stage of each op, :data:`FREE` where every stage may run it.
        readers: (op, result) -> the stages that receive it, ascending.
        kept: by stage the ops that it runs, free ones among them.
        outputs: the stage that makes each result of the program; :data:`FREE` where all have it.
    """

    def __init__(self, block: ir.Block, plan: StagePlan) -> None:
        *self._ops, terminator = operations(block)
        self._plan = plan
        self._numbers = {result: number for number, op in enumerate(self._ops) for result in op.results}
        self._problems: list[str] = []
        self.of: list[int] = []
        plan.used.clear()
        plan.stages.clear()
        for op in self._ops:
            self.of.append(self._stage(op))
        unused = [entry for entry in plan.entries if entry not in plan.used]
        self._problems += [f"{entry.pattern!r} names no module of the model" for entry in unused]
        if self._problems:
            raise UsageError(
                "LK1011",
                f"the stages of {plan.axis!r} are wrong: {self._problems[0]}",
                details=self._problems[1:],
                hint="a stage reads from itself and from those before it; --shard auto chooses stages",
            )
        self._returned = list(terminator.operands)
        self.outputs = [self._stage_of(value) for value in self._returned]
        self.readers: dict[tuple[int, int], list[int]] = {}
        self.kept = [self._needed(stage) for stage in range(plan.ranks)]

    def _stage(self, op: ir.Operation) -> int:
        read = max((self._stage_of(value) for value in _read(op)), default=FREE)
        path = describe(op).module_path
        entry = _entry(self._plan, op)
        if entry is None:
            return read
        self._plan.used.add(entry)
        if entry.stage < read:
            self._problems.append(self._too_early(op, entry, read))
        self._plan.stages[path] = max(entry.stage, read)
        return max(entry.stage, read)

    def _too_early(self, op: ir.Operation, entry: StageEntry, read: int) -> str:
        return f"{entry.pattern!r} is stage {entry.stage}, and {describe(op)} reads what stage {read} makes"

    def _stage_of(self, value: ir.Value) -> int:
        number = self._numbers.get(value)
        return FREE if number is None else self.of[number]

    def _needed(self, stage: int) -> set[int]:
        """Returns the ops that a stage runs, and notes what it receives for them."""
        kept: set[int] = set()
        pending = [
            number
            for number, op in enumerate(self._ops)
            if self.of[number] == stage or (self.of[number] == FREE and has_effects(op))
        ]
        # A free result of the program is made by all stages.
        free = [value for value in self._returned if self._stage_of(value) == FREE]
        pending += [self._numbers[value] for value in free if value in self._numbers]
        while pending:
            number = pending.pop()
            if number in kept:
                continue
            kept.add(number)
            for value in _read(self._ops[number]):
                source = self._numbers.get(value)
                if source is None:
                    continue
                if self.of[source] in (stage, FREE):
                    pending.append(source)
                else:
                    result = list(self._ops[source].results).index(value)
                    stages = self.readers.setdefault((source, result), [])
                    if stage not in stages:
                        stages.append(stage)
        return kept


class _Cut:
    """Makes of a copy of the program what one stage runs."""

    def __init__(self, block: ir.Block, stages: _Stages, plan: StagePlan, own: int) -> None:
        self.block = block
        self.stages = stages
        self.plan = plan
        self.own = own
        self.sent: list[ir.Value] = []

    def run(self) -> None:
        *ops, terminator = operations(self.block)
        kept = self.stages.kept[self.own]
        removed: list[ir.Operation] = []
        returned = list(terminator.operands)
        received: dict[ir.Value, ir.Value] = {}
        for number, op in enumerate(ops):
            for result, value in enumerate(op.results):
                readers = self.stages.readers.get((number, result), [])
                if self.stages.of[number] == self.own:
                    self._send(op, value, readers)
                elif self.own in readers:
                    received[value] = self._receive(op, value, self.stages.of[number])
            if number not in kept:
                removed.append(op)
        with ir.InsertionPoint(terminator):
            for token in self.sent:
                with token.owner.operation.location:
                    CollectiveDoneOp.build(token)
            for place, (value, stage) in enumerate(zip(returned, self.stages.outputs, strict=True)):
                if stage != FREE:
                    terminator.operands[place] = self._broadcast(value, stage)
        for value, other in received.items():
            value.replace_all_uses_with(other)
        for op in reversed(removed):
            op.erase()

    def _send(self, op: ir.Operation, value: ir.Value, readers: Sequence[int]) -> None:
        with ir.InsertionPoint.after(_last_behind(op, self.sent)), op.location:
            for reader in sorted(readers):
                self.sent.append(self._start(value, "send", peer=reader))

    def _receive(self, op: ir.Operation, value: ir.Value, source: int) -> ir.Value:
        with ir.InsertionPoint(op), op.location:
            return CollectiveDoneOp.build(self._start(self._empty(value), "receive", peer=source))

    def _broadcast(self, value: ir.Value, source: int) -> ir.Value:
        owner = defining_op(value)
        assert owner is not None, "a result of a stage is made by an op"
        with owner.location:
            operand = value if source == self.own else self._empty(value)
            return CollectiveDoneOp.build(self._start(operand, "broadcast", root=source))

    def _start(self, value: ir.Value, kind: str, *, peer: int = -1, root: int = -1) -> ir.Value:
        return CollectiveStartOp.build(
            value, kind=kind, axis=self.plan.axis, ranks=self.plan.ranks, peer=peer, root=root
        )

    def _empty(self, value: ir.Value) -> ir.Value:
        owner = defining_op(value)
        assert owner is not None, "an argument is free"
        shape = None if tensor_type(value) is None else open_shape(value)
        if shape is None:
            raise UnsupportedError(
                "LK4007",
                f"{describe(owner)} gives {value.type} to another stage of {self.plan.axis!r}: "
                "a stage passes on tensors whose shapes follow from those of the inputs",
                hint="compile for fixed sizes, or without the pipeline axis",
            )
        return tensor.EmptyOp(shape, element_of(value)).result


def _entry(plan: StagePlan, op: ir.Operation) -> StageEntry | None:
    """Returns what the plan says of an op."""
    return plan.stage_of(describe(op).module_path) if _computes(op) else None


def _computes(op: ir.Operation) -> bool:
    """Whether a plan may give an op a stage: data and the arithmetic of extents are where they are read."""
    return op.name not in ("lk.weight", "arith.constant", "tensor.empty", "tensor.dim") and bool(
        has_effects(op) or any(tensor_type(result) is not None for result in op.results)
    )


def _read(op: ir.Operation) -> list[ir.Value]:
    return [*op.operands, *captured_values(op)]


def _last_behind(op: ir.Operation, sent: Sequence[ir.Value]) -> ir.Operation:
    """Several results of one op are sent one behind the other."""
    if sent:
        last = sent[-1].owner.operation
        previous = defining_op(last.operands[0])
        if previous is not None and previous == op:
            return last
    return op
