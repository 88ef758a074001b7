"""From instructions to basic blocks: steps that run one after another, and how they end.

A block begins at a label, behind a branch, and at every instruction that threads run together, so that threads can be
held back in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.opcodes.fences import check_fence
from lowerkit.runtimes.cuda.simulated.opcodes.table import find_opcode, threads_together
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.text.syntax import Name, Scope
from lowerkit.runtimes.cuda.simulated.text.tokens import shown

_ORDERING = ("fence", "membar")
_BARRIERS = ("bar", "barrier")
_ENDINGS = ("bra", "brx", "ret", "exit", *_BARRIERS)


@dataclass(frozen=True)
class Guard:
    """The predicate in front of an instruction."""

    slot: int
    negated: bool

    def value(self, batch: Batch) -> Array:
        """Returns for which threads the instruction runs, bool, in a shape that broadcasts to the batch's."""
        value = batch.registers[self.slot]
        return ~value if self.negated else value


@dataclass(frozen=True)
class Jump:
    """Goes on at ``target``, where the guard says so."""

    guard: Guard | None
    target: int


@dataclass(frozen=True)
class IndexedJump:
    """Goes on at one of ``targets``, by a register."""

    slot: int
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Leave:
    """Ends the threads, where the guard says so."""

    guard: Guard | None


@dataclass(frozen=True)
class BlockBarrier:
    """Waits for ``count`` threads of the block (None: all that are left) at barrier ``number``."""

    number: int
    count: int | None
    read: InstructionReader


@dataclass(frozen=True)
class BasicBlock:
    """Instructions ``start`` to ``end``.

    Attributes:
        gathers: how many neighbouring threads the first instruction needs together: 0, a warp, or a group of warps.
        ending: None where the next block follows.
        first, last: instructions, for messages.
    """

    start: int
    end: int
    steps: Sequence[Step]
    gathers: int
    ending: Jump | IndexedJump | Leave | BlockBarrier | None
    first: InstructionReader
    last: InstructionReader


def build_blocks(readers: Sequence[InstructionReader]) -> Mapping[int, BasicBlock]:
    """Returns the basic blocks of a kernel, by the number of their first instruction.

    Raises:
        UnknownPtx: LK8018, an instruction is not known.
    """
    starts = _leaders(readers)
    return {start: _block(readers, start, end) for start, end in zip(starts, [*starts[1:], len(readers)], strict=True)}


def _leaders(readers: Sequence[InstructionReader]) -> list[int]:
    leaders = {0}
    seen: set[int] = set()
    for number, read in enumerate(readers):
        instruction = read.instruction
        scope: Scope | None = instruction.scope
        while scope is not None and scope.number not in seen:
            seen.add(scope.number)
            leaders.update(scope.labels.values())
            scope = scope.parent
        if instruction.opcode in _ENDINGS:
            leaders.add(number + 1)
        if threads_together(instruction):
            leaders.add(number)
    return sorted(leader for leader in leaders if leader < len(readers))


def _block(readers: Sequence[InstructionReader], start: int, end: int) -> BasicBlock:
    last = readers[end - 1]
    ending = _ending(last) if last.instruction.opcode in _ENDINGS else None
    plain = readers[start : end - 1] if ending is not None else readers[start:end]
    steps = [step for step in map(_step, plain) if step is not None]
    return BasicBlock(start, end, steps, threads_together(readers[start].instruction), ending, readers[start], last)


def _step(read: InstructionReader) -> Step | None:
    """Returns the step of an instruction that neither branches nor waits; None if it does nothing here."""
    instruction = read.instruction
    if instruction.opcode in _ORDERING:
        return _fence(read)
    if instruction.opcode in _BARRIERS:  # bar.warp.sync: the scheduler has gathered the warp
        return None
    step = find_opcode(read)(read)
    read.finish()
    guard = _guard(read)
    return step if guard is None else _guarded(read, step, guard)


def _fence(read: InstructionReader) -> Step | None:
    """Accesses are in order already: fences count where races are looked for. One between proxies orders no others."""
    check_fence(read)
    if "proxy" in read.instruction.modifiers:
        return None
    read.slots.use.fences = True

    def run(batch: Batch) -> None:
        if batch.races is not None:
            batch.races.fence()

    guard = _guard(read)
    return run if guard is None else _guarded(read, run, guard)


def _guard(read: InstructionReader) -> Guard | None:
    name = read.instruction.guard
    return None if name is None else Guard(read.value(Name(name.text), "pred"), name.negated)


def _guarded(read: InstructionReader, step: Step, guard: Guard) -> Step:
    def run(batch: Batch) -> None:
        value = guard.value(batch)
        if value.all():
            if batch.coverage is not None:
                batch.coverage.guarded.add(read)
            step(batch)
            return
        outer = batch.active, batch.merge
        active = np.array(batch.full(value)) if batch.active is None else batch.active & value
        if not active.any():
            return
        if batch.coverage is not None:
            batch.coverage.guarded.add(read)
        batch.active = batch.merge = active
        step(batch)
        batch.active, batch.merge = outer

    return run


def _ending(read: InstructionReader) -> Jump | IndexedJump | Leave | BlockBarrier | None:
    opcode = read.instruction.opcode
    if opcode in _BARRIERS:
        return _barrier(read)
    if opcode in ("ret", "exit"):
        read.drop("uni")
        read.finish()
        return Leave(_guard(read))
    read.drop("uni")
    if opcode == "bra":
        read.finish()
        read.count(1)
        return Jump(_guard(read), _label(read, read.operand(0)))
    read.required("idx")
    read.finish()
    read.count(2)
    table = read.operand(1)
    if read.instruction.guard is not None or not isinstance(table, Name):
        raise read.unknown("the form")
    return IndexedJump(read.source(0, "b32"), tuple(_label(read, Name(name)) for name in _table(read, table.text)))


def _barrier(read: InstructionReader) -> BlockBarrier | None:
    read.drop("aligned", "cta")
    warp = read.flag("warp")
    read.required("sync")
    read.finish()
    if warp:
        read.count(1)
        return None
    read.count(0, 1, 2)
    operands = read.instruction.operands
    if read.instruction.guard is not None:
        raise read.unknown("the guard")
    number = read.immediate(0) if operands else 0
    count = read.immediate(1) if len(operands) == 2 else None
    if not 0 <= number < 16 or (count is not None and (count <= 0 or count % 32)):
        raise read.unknown(f"barrier {number} of {count} threads")
    return BlockBarrier(number, count, read)


def _label(read: InstructionReader, operand: object) -> int:
    scope: Scope | None = read.instruction.scope
    while scope is not None and isinstance(operand, Name):
        if operand.text in scope.labels:
            return scope.labels[operand.text]
        scope = scope.parent
    text = operand.text if isinstance(operand, Name) else ""
    raise UnknownPtx(f"label {shown(text)} is not known", read.instruction.place.line)


def _table(read: InstructionReader, name: str) -> Sequence[str]:
    scope: Scope | None = read.instruction.scope
    while scope is not None:
        if name in scope.tables:
            return scope.tables[name]
        scope = scope.parent
    raise UnknownPtx(f"table of labels {shown(name)} is not known", read.instruction.place.line)
