"""All arguments that a mutant is equivalent, one after another."""

from __future__ import annotations

from collections.abc import Collection

from tests.support.cuda.equivalence.butterflies import Butterflies
from tests.support.cuda.equivalence.flow import LABEL, guards, results, sources
from tests.support.cuda.equivalence.instructions import same_shift, symmetric, unselected
from tests.support.cuda.equivalence.symbols import Symbols
from tests.support.cuda.equivalence.threads import ThreadNumbers
from tests.support.cuda.mutants import Line, Mutant, instructions

_ARITHMETIC = frozenset({
    "mov", "add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "not", "neg", "setp", "selp", "cvt", "bfe",
    "min", "max", "div", "rem", "cvta",
})  # fmt: skip
_ACCESSES = frozenset({
    "ld", "st", "atom", "red", "cp", "ldmatrix", "stmatrix", "wgmma", "mbarrier", "fence", "membar",
})  # fmt: skip


def _permission(mutant: Mutant) -> str | None:
    """What lets the next launch begin earlier: that launch waits for the end of this one whenever it begins."""
    name = mutant.line.opcode
    return "it only lets others begin" if name == "griddepcontrol.launch_dependents" else None


class Equivalence:
    """The arguments for the mutants of one kernel.

    Args:
        ptx: its text.
        threads: of a block.
        never: lines, from 0, of branches that are never taken.
        blocks: of a launch at most; a card takes no more than are taken for granted here.
    """

    def __init__(self, ptx: str, threads: int, never: Collection[int] = (), blocks: int = (1 << 31) - 1) -> None:
        self._lines = instructions(ptx)
        self._text = ptx.splitlines()
        self._at = {line.number: place for place, line in enumerate(self._lines)}
        self._writers: dict[str, list[Line]] = {}
        for line in self._lines:
            for name in results(line):
                self._writers.setdefault(name, []).append(line)
        self._threads = ThreadNumbers(ptx, self._lines, threads)
        self._butterflies = Butterflies(self._lines)
        self._symbols = Symbols(ptx, threads, never, blocks)

    def argument(self, mutant: Mutant) -> str | None:
        """Returns why a mutant is equivalent; None where no argument is known."""
        for each in (
            self._unused, self._overwritten, self._doubled, self._threads.argument, self._butterflies.argument,
            same_shift, unselected, symmetric, _permission, self._symbols.argument,
        ):  # fmt: skip
            found = each(mutant)
            if found is not None:
                return found
        return None

    def _unused(self, mutant: Mutant) -> str | None:
        """Nothing reads the result, before or after the change."""
        written = results(mutant.line)
        changed = [] if mutant.changed is None else results(mutant.changed)
        if not written or any(each.name in _ACCESSES for each in (mutant.line, mutant.changed) if each is not None):
            return None
        if mutant.line.name == "shfl" and mutant.changed is not None:
            return None  # the lanes that it names must be there, whoever reads it
        read = {name for line in self._lines for name in (*sources(line), *guards(line))}
        return "nothing reads its result" if not read & {*written, *changed} else None

    def _overwritten(self, mutant: Mutant) -> str | None:
        """A value that a load behind a predicate overwrites, where only stores behind the predicate see it."""
        if mutant.line.name != "mov" or mutant.line.guard is not None:
            return None
        written = results(mutant.line)
        behind = self._lines[self._at[mutant.line.number] + 1 :]
        load = next((line for line in behind if set(written) & {*results(line), *sources(line)}), None)
        if load is None or load.name != "ld" or load.guard is None or not set(written) <= set(results(load)):
            return None
        if len(self._writers[load.guard]) > 1 or any(len(self._writers[name]) > 2 for name in written):
            return None
        reached = set(written)
        for line in behind:
            if not reached & {*sources(line), *guards(line)}:
                continue
            if (line.name, line.guard, line.negated) == ("st", load.guard, load.negated):
                continue
            if line.name not in _ARITHMETIC or line.guard is not None:
                return None
            reached |= set(results(line))
        return "it is overwritten wherever it is stored"

    def _doubled(self, mutant: Mutant) -> str | None:
        """A barrier or a wait that is gone, beside another one of its kind, with no access between them."""
        if mutant.kind != "deleted" or mutant.line.name not in ("bar", "cp"):
            return None
        place = self._at[mutant.line.number]
        for step in (1, -1):
            at = place + step
            while 0 <= at < len(self._lines) and not self._joined(self._lines[at - max(step, 0)], self._lines[at]):
                other = self._lines[at]
                if (other.guard, other.opcode, other.operands) == (None, mutant.line.opcode, mutant.line.operands):
                    return "another one beside it does the same"
                if other.name in _ACCESSES or other.name in ("bar", "bra", "ret"):
                    break
                at += step
        return None

    def _joined(self, first: Line, second: Line) -> bool:
        """Whether a label lies between two instructions."""
        between = self._text[min(first.number, second.number) + 1 : max(first.number, second.number)]
        return any(LABEL.match(text) for text in between)
