"""The argument that a mutant does the same for every input: its terms, and what it does to the outside, are the same.

Kernel and mutant run side by side on ``terms``, from the start of the block of instructions that was changed, each
thread by itself, so that masks of columns, directions of sorting networks and partners of shuffles are numbers. What a
register holds at the start of the block, what memory gives, and what is not known of an instruction, stand for
themselves. The mutant is equivalent if it loads, stores, jumps and waits as the kernel does, where a store behind a
predicate is looked at as if the predicate held, and if what the block leaves behind in registers that are read later is
the same. A NaN may be another NaN, unless something looks at its bits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from tests.support.cuda.equivalence.choices import Choices
from tests.support.cuda.equivalence.execution import BITS, Done, Execution, Values
from tests.support.cuda.equivalence.flow import Block, blocks_of, guards, results, sources
from tests.support.cuda.equivalence.terms import Doubt
from tests.support.cuda.mutants import REGISTER, Line, Mutant

_READS = frozenset({"ld", "atom", "red", "cp", "call"})
_OTHER_REGISTERS = re.compile(r"%(?!(p|r|rd|rs)\d+\b)[a-z]+\d+\b")


class Registers(dict[str, Values]):
    """What registers hold; one that nothing is known of stands for itself."""

    def __init__(self, terms: Choices, threads: int, stable: Mapping[str, Values]) -> None:
        super().__init__()
        self._terms, self._threads, self._stable = terms, threads, stable

    def __missing__(self, name: str) -> Values:
        found = self._stable.get(name)
        if found is None:
            found = [self._terms.node("leaf", "register", name, thread) for thread in range(self._threads)]
        self[name] = found
        return found


class Symbols:
    """A kernel on terms.

    Args:
        ptx: its text.
        threads: of a block.
        never: lines, from 0, of branches that are never taken.
        blocks: of a launch at most.
    """

    def __init__(self, ptx: str, threads: int, never: Collection[int], blocks: int) -> None:
        self._threads = threads
        self._known = _OTHER_REGISTERS.search(re.sub(r"//.*|\.reg.*", "", ptx)) is None
        self._blocks = blocks_of(ptx, never)
        self._writers: dict[str, int] = {}
        for block in self._blocks:
            for line in block.lines:
                for name in results(line):
                    self._writers[name] = self._writers.get(name, 0) + 1
        self._terms = Choices()
        self._execution = Execution(self._terms, threads, blocks)
        self._stable: dict[str, Values] = {}
        self._done: list[Sequence[Done]] = []

    def argument(self, mutant: Mutant) -> str | None:
        """Returns why a mutant is equivalent; None: its terms are others."""
        if not self._known:
            return None
        if not self._done:
            self._done = [self._run(block) for block in self._blocks]
        entry: dict[str, Values] = {}  # what other blocks find changed
        for block, done in zip(self._blocks, self._done, strict=True):
            if any(line.number == mutant.line.number for line in block.lines):
                left = self._left_behind(mutant, block, done, entry)
                if left is None:
                    return None
                entry = left
        reached: set[str] = set()
        while entry.keys() - reached:
            if not all(self._settled(name, values) for name, values in entry.items()):
                return None
            reached = {*entry}
            for block, done in zip(self._blocks, self._done, strict=True):
                read = {name for line in block.lines for name in (*sources(line), *guards(line))}
                if not reached & read or any(line.number == mutant.line.number for line in block.lines):
                    continue
                left = self._left_behind(None, block, done, entry)
                if left is None:
                    return None
                entry |= left
        return "it computes the same terms"

    def _settled(self, name: str, values: Values) -> bool:
        """Whether a register has one value, known or of the launch, wherever it is read."""
        return self._writers[name] == 1 and all(
            self._terms.stable(each) and self._terms.doubt(each) == Doubt.NONE for each in values
        )

    def _run(self, block: Block) -> Sequence[Done]:
        """Runs a block as it is, and keeps what it leaves in registers that have the same value wherever they are."""
        env = Registers(self._terms, self._threads, self._stable)
        found: list[Done] = []
        for line in block.lines:
            done = self._execution.run(line, env, doubt=Doubt.NONE)
            env.update(done.written)
            found.append(done)
            for name, values in done.written.items():
                if self._writers[name] == 1 and line.guard is None and all(map(self._terms.stable, values)):
                    self._stable[name] = values
        return found

    def _left_behind(
        self, mutant: Mutant | None, block: Block, done: Sequence[Done], entry: Mapping[str, Values]
    ) -> dict[str, Values] | None:
        """Runs a block beside what it was, with registers changed at its start, one instruction changed, or both.

        Returns:
            The registers that may be different behind it and are read there; None: it does something else.
        """
        env = Registers(self._terms, self._threads, self._stable)
        known: dict[str, Values] = {}  # where the kernel has other terms now, since memory is in doubt
        other: dict[str, Values] = {**entry}  # what may be different in the mutant
        doubt = Doubt.NONE  # about what memory holds in the mutant
        for line, as_it_was in zip(block.lines, done, strict=True):
            touched = {*sources(line), *guards(line), *results(line)}
            loads = doubt and line.name == "ld"
            before = self._changed(line, env, known, doubt) if loads or touched & known.keys() else as_it_was
            after = before
            if mutant is not None and line.number == mutant.line.number:
                gone = self._without(line) if mutant.changed is None else None
                if mutant.changed is None and gone is None:
                    return None
                after = gone or self._changed(mutant.changed or line, env, {**known, **other}, doubt)
            elif loads or touched & other.keys():
                after = self._changed(line, env, {**known, **other}, doubt)
            if after is not before:
                if not self._alike(line, before, after) and not self._stored_by_others(line, block, before, after):
                    return None
                if line.name == "st" and any(self._terms.doubt(term) for _, row in after.effect or () for term in row):
                    doubt = Doubt.VAGUE
            for name in {**before.written, **after.written}:
                old = before.written.get(name) or known.get(name) or env[name]
                new = after.written.get(name, old)
                known.pop(name, None)
                if name in before.written and before is not as_it_was:
                    known[name] = old
                other.pop(name, None)
                if new != old or any(map(self._terms.doubt, new)):
                    other[name] = new
            env.update(as_it_was.written)
        return {name: values for name, values in other.items() if name in block.live}

    def _changed(self, line: Line, env: Registers, other: Mapping[str, Values], doubt: Doubt) -> Done:
        whole = Registers(self._terms, self._threads, self._stable)
        whole.update(env)
        whole.update(other)
        return self._execution.run(line, whole, doubt=doubt)

    def _without(self, line: Line) -> Done | None:
        """What stands for an instruction that is gone: all bits set; a predicate stays false, as at the start."""
        written: dict[str, Values] = {}
        for name in results(line):
            kind = REGISTER.fullmatch(name)
            assert kind is not None, "a register as LLVM names them"
            if kind[2] == "p" and self._writers[name] > 1:
                return None
            bits = BITS[kind[2]]
            written[name] = self._execution.every(self._terms.constant(0 if bits == 1 else (1 << bits) - 1))
        return Done(written, None)

    def _alike(self, line: Line, before: Done, after: Done) -> bool:
        """Whether two instructions do the same to the outside, in each thread."""
        idle = [(self._terms.constant(0), ())] * self._threads
        for first, second in zip(before.effect or idle, after.effect or idle, strict=True):
            if first[0] != second[0]:
                return False
            if first[0] == self._terms.constant(0):
                continue
            most = Doubt.VAGUE if line.name == "st" else Doubt.NONE
            if self._terms.doubt(second[0]) or any(self._terms.doubt(each) > most for each in second[1]):
                return False
            if first[1] != second[1] and not self._where_it_runs(first[0], first[1], second[1]):
                return False
        return True

    def _stored_by_others(self, line: Line, block: Block, before: Done, after: Done) -> bool:
        """Whether other threads of the block store the same to the same places, and nothing is read from there."""
        if not line.opcode.startswith("st.global") or any(
            each.name in _READS and (each.name != "ld" or "global" in each.opcode) for each in self._behind(line, block)
        ):
            return False
        stored: list[set[tuple[int, ...]]] = []
        for done in (before, after):
            if any(self._terms.value(guard) is None for guard, _ in done.effect or ()):
                return False
            stored.append({tuple(row) for guard, row in done.effect or () if self._terms.value(guard)})
        return stored[0] == stored[1] and not any(self._terms.doubt(each) for row in stored[1] for each in row)

    def _behind(self, line: Line, block: Block) -> Iterator[Line]:
        """The instructions that may run after one."""
        yield from (each for each in block.lines if each.number > line.number)
        waiting, seen = [*block.next], set[int]()
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                yield from self._blocks[number].lines
                waiting += self._blocks[number].next

    def _where_it_runs(self, guard: int, first: Sequence[int], second: Sequence[int]) -> bool:
        there = self._execution.where(guard, 1)
        rows = [[there.of(term) for term in row] for row in (first, second)]
        return rows[0] == rows[1] and all(self._terms.doubt(each) < Doubt.UNKNOWN for each in rows[1])
