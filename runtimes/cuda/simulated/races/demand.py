"""Reads whose value counts for some threads alone: compilers let all threads read what one of them needs.

Triton reads a scalar with every thread, computes with it, and stores the result with one: ``@%p st``. The store is not
ordered behind the reads of the others, and need not be: what they read, they never use. A read is *dead unless* a
predicate holds where its value reaches, through arithmetic alone, only instructions behind that predicate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.races import keys as key
from lowerkit.runtimes.cuda.simulated.races.report import Access, Meeting
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.text.syntax import Address, Instruction, Name, Operand, Pair, Vector

# What an instruction does beside computing its first operand from the others: a value that it takes is used.
_USES = frozenset({
    "activemask", "atom", "bar", "barrier", "bra", "brx", "call", "cp", "elect", "exit", "fence", "isspacep", "ld",
    "ldmatrix", "match", "mbarrier", "membar", "mma", "prefetch", "red", "redux", "ret", "setmaxnreg", "shfl", "st",
    "stmatrix", "tcgen05", "tensormap", "trap", "vote", "wgmma",
})  # fmt: skip
_GIVES_FIRST = frozenset({"ld", "ldmatrix", "atom", "mma", "shfl", "vote", "match", "redux", "activemask", "elect"})


class Demand:
    """What the instructions of a kernel do with what others read."""

    def __init__(self, readers: Sequence[InstructionReader]) -> None:
        self._readers = readers
        self._answers: dict[tuple[InstructionReader, Name], bool] = {}

    def is_dead_unless(self, read: InstructionReader, guard: Name) -> bool:
        """Returns whether what an instruction reads counts only where the predicate ``guard`` holds."""
        key = read, Name(guard.text, negated=guard.negated)
        if key not in self._answers:
            self._answers[key] = self._trace(read, guard)
        return self._answers[key]

    def counting(
        self, batch: Batch, first_warp: int, hot: Meeting, keys: Array, log: Sequence[Access], *, reads: bool
    ) -> Meeting | None:
        """Leaves of accesses that nothing orders those whose value counts for the thread that reads it.

        Args:
            batch, first_warp: of the current accesses, and the number of its first warp in the launch.
            hot: the accesses.
            keys: of all current ones.
            log: all accesses so far, by time, from 1 on; the last one is the current one.
            reads: whether the current ones read and the earlier ones have written, or the other way round.
        """
        warps = batch.shape[1] // WARP
        times = key.times(hot.before)
        left = np.ones(times.shape, np.bool_)
        for time in np.unique(times).tolist():
            which = times == time
            current, earlier = log[-1].instruction, log[time - 1].instruction
            read, write = (current, earlier) if reads else (earlier, current)
            guard = write.instruction.guard
            if guard is None or not self.is_dead_unless(read, guard):
                continue
            mine, before = keys[hot.at[which]], hot.before[which]
            reader, writer = (mine, before) if reads else (before, mine)
            holds = batch.warps(batch.registers[write.value(Name(guard.text), "pred")] != guard.negated)
            warp, lane = key.warps(reader), key.lanes(reader)
            near = warp // warps == key.warps(writer) // warps
            local = np.where(near, warp - first_warp, 0)
            whole = lane == key.SEVERAL
            wanted = np.where(whole, holds[local].sum(1), holds[local, lane % WARP])
            own = (warp == key.warps(writer)) & whole  # the thread that writes is one of the lanes
            left[which] = ~near | (wanted > own)
        return Meeting(hot.at[left], hot.column[left], hot.before[left]) if left.any() else None

    def _trace(self, read: InstructionReader, guard: Name) -> bool:
        if read.instruction.opcode != "ld" or read.instruction.guard is not None:
            return False
        reached = set(_registers(read, read.instruction.operands[:1]))
        behind = [each for each in self._readers if _is_behind(each.instruction, guard)]
        others = [each for each in self._readers if not _is_behind(each.instruction, guard)]
        grows = True
        while grows:
            grows = False
            for each in others:
                instruction = each.instruction
                uses = instruction.opcode in _USES
                first = 1 if instruction.opcode in _GIVES_FIRST or not uses else 0
                taken = set(_registers(each, instruction.operands[first:]))
                if each is read or not (taken | set(_guard(each))) & reached:
                    continue
                if uses or set(_guard(each)) & reached:
                    return False
                new = set(_registers(each, instruction.operands[:1])) - reached
                grows |= bool(new)
                reached |= new
        return any(set(_registers(each, each.instruction.operands)) & reached for each in behind)


def _is_behind(instruction: Instruction, guard: Name) -> bool:
    own = instruction.guard
    return own is not None and (own.text, own.negated) == (guard.text, guard.negated)


def _guard(read: InstructionReader) -> Iterator[int]:
    guard = read.instruction.guard
    return iter(()) if guard is None else _registers(read, [Name(guard.text)])


def _registers(read: InstructionReader, operands: Sequence[Operand]) -> Iterator[int]:
    """Yields the slots of the registers in operands."""
    for operand in operands:
        names: Sequence[object] = (operand,)
        if isinstance(operand, Vector):
            names = operand.parts
        elif isinstance(operand, Pair):
            names = (operand.first, operand.second)
        elif isinstance(operand, Address):
            names = (operand.base,)
        for name in names:
            slot = read.slots.register(name.text, read.instruction.scope) if isinstance(name, Name) else None
            if slot is not None:
                yield slot
