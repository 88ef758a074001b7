"""Mutants of a PTX kernel: one instruction changed in each, to learn what a check would miss.

A mutant is *killed* where the check fails on it, and *equivalent* where an argument (``equivalence``) says that no
check can fail. What neither kills nor excuses has *survived*: the check is too weak, or there is an argument that is
not known here. Of an instruction that is gone the result has all bits set, as memory has that nothing has written: on a
card it would be anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx

INSTRUCTION = re.compile(r"^\s*(?:(@!?)(%\w+)\s+)?([a-z]\w*(?:[.:]+\w+)*)(?:\s+([^;]*?))?\s*;\s*(?://.*)?$")
_INTEGER = re.compile(r"(?<![\w%$.+])(-?\d+)(?![\w.])")
_COMPARISONS = {
    "lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq",
    "ltu": "leu", "leu": "ltu", "gtu": "geu", "geu": "gtu", "equ": "neu", "neu": "equ",
}  # fmt: skip
_PARTNERS = {"add": "sub", "sub": "add", "min": "max", "max": "min", "shl": "shr", "and": "or", "or": "and"}
_ORDERED = frozenset({"sub", "shl", "shr", "setp", "div", "rem"})  # two sources that are not exchanged for nothing
REGISTER = re.compile(r"(%(p|r|rd|rs)\d+)\b")  # as LLVM names them: the letters say of how many bits they are
_BITS = {"r": 32, "rd": 64, "rs": 16}
_WITHOUT_RESULT = frozenset({"st", "bar", "red", "cp", "fence", "membar", "bra", "ret", "stmatrix"})
_LEFT_ALONE = frozenset({"ret", "bra"})  # without them a text is another program


@dataclass(frozen=True)
class Line:
    """An instruction on a line of its own: the number of the line, from 0, and its parts."""

    number: int
    negated: bool
    guard: str | None
    opcode: str
    operands: str

    @property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.split(".")[0]

    def text(self) -> str:
        """Returns the line."""
        guard = "" if self.guard is None else f"@{'!' if self.negated else ''}{self.guard} "
        return f"\t{guard}{self.opcode} {self.operands};"


@dataclass(frozen=True)
class Mutant:
    """A text with one instruction changed.

    Attributes:
        kind: what was done.
        line: the instruction as it was; ``changed`` as it is, None for one that is gone.
        ptx: the whole text.
    """

    kind: str
    line: Line
    changed: Line | None
    ptx: str

    def __str__(self) -> str:
        after = "" if self.changed is None else f" -> {self.changed.text().strip()}"
        return f"line {self.line.number + 1}, {self.kind}: {self.line.text().strip()}{after}"


@dataclass
class Score:
    """What became of the mutants of a kernel.

    Attributes:
        killed, survived: mutants.
        equivalent: mutants, each with the argument that it is equivalent.
    """

    killed: list[Mutant] = field(default_factory=list[Mutant])
    equivalent: list[tuple[Mutant, str]] = field(default_factory=list[tuple[Mutant, str]])
    survived: list[Mutant] = field(default_factory=list[Mutant])

    @property
    def share(self) -> float:
        """Which part of the mutants that are not equivalent was killed."""
        return len(self.killed) / max(1, len(self.killed) + len(self.survived))

    def report(self) -> str:
        """Returns what survived, line by line."""
        counts = f"{len(self.killed)} killed, {len(self.equivalent)} equivalent, {len(self.survived)} survived"
        return "\n".join([f"{counts}: {self.share:.1%}", *map(str, self.survived)])


def instructions(ptx: str) -> Sequence[Line]:
    """Returns the instructions of a text."""
    found: list[Line] = []
    for number, text in enumerate(ptx.splitlines()):
        match = INSTRUCTION.match(text)
        if match is not None and not text.lstrip().startswith((".", "//")):
            guard, predicate, opcode, operands = match.groups()
            found.append(Line(number, guard == "@!", predicate, opcode, operands or ""))
    return found


def mutants(ptx: str) -> Iterator[Mutant]:
    """Yields every mutant of a text."""
    lines = ptx.splitlines()
    for line in instructions(ptx):
        for kind, changed in _changes(line):
            text = _unwritten(line) if changed is None else changed.text()
            if text.split(";")[0].strip() == line.text().split(";")[0].strip():
                continue  # all bits set is what it was
            yield Mutant(kind, line, changed, "\n".join([*lines[: line.number], text, *lines[line.number + 1 :], ""]))


def run_mutants(
    ptx: str, check: Callable[[str], None], argument: Callable[[Mutant], str | None], every: int = 1
) -> Score:
    """Runs a check on mutants.

    Args:
        ptx: the text, which passes the check.
        check: raises KernelFault or AssertionError for a text that is not right.
        argument: why a mutant is equivalent, None for those it cannot say it of; asked of survivors alone.
        every: takes each so-manieth mutant.
    """
    check(ptx)
    score = Score()
    for number, mutant in enumerate(mutants(ptx)):
        if number % every:
            continue
        try:
            check(mutant.ptx)
        except (KernelFault, AssertionError):
            score.killed.append(mutant)
            continue
        except UnknownPtx:
            continue  # no program at all
        why = argument(mutant)
        if why is None:
            score.survived.append(mutant)
        else:
            score.equivalent.append((mutant, why))
    return score


def _unwritten(line: Line) -> str:
    """Returns what stands for an instruction that is gone."""
    results = [] if line.name in _WITHOUT_RESULT else REGISTER.findall(split_operands(line.operands)[0])
    return "\t" + " ".join(f"mov.b{_BITS[kind]} {name}, -1;" for name, kind in results if kind in _BITS) + "// gone"


def _changes(line: Line) -> Iterator[tuple[str, Line | None]]:
    if line.name not in _LEFT_ALONE:
        yield "deleted", None
    if line.guard is not None:
        yield "predicate negated", _with(line, negated=not line.negated)
        yield "predicate dropped", Line(line.number, False, None, line.opcode, line.operands)
    parts = line.opcode.split(".")
    if line.name == "setp":
        for place, part in enumerate(parts):
            if part in _COMPARISONS:
                yield (
                    "comparison",
                    _with(line, opcode=".".join([*parts[:place], _COMPARISONS[part], *parts[place + 1 :]])),
                )
    if line.name in _PARTNERS and "cc" not in parts:
        yield "operation", _with(line, opcode=".".join([_PARTNERS[line.name], *parts[1:]]))
    operands = split_operands(line.operands)
    if line.name in _ORDERED and len(operands) == 3 and not {"eq", "ne"} & set(parts):
        yield "operands exchanged", _with(line, operands=", ".join([operands[0], operands[2], operands[1]]))
    if line.name == "shfl" and len(operands) == 5:
        yield "half of the lanes named", _with(line, operands=", ".join([*operands[:4], "65535"]))
    for match in _INTEGER.finditer(line.operands):
        if line.name == "bar":
            continue
        number = str(int(match[1]) + 1)
        yield "number", _with(line, operands=line.operands[: match.start()] + number + line.operands[match.end() :])


def split_operands(text: str) -> list[str]:
    """Splits operands at the commas outside of braces and brackets."""
    return [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", text)]


def _with(line: Line, *, negated: bool | None = None, opcode: str | None = None, operands: str | None = None) -> Line:
    return Line(
        line.number,
        line.negated if negated is None else negated,
        line.guard,
        line.opcode if opcode is None else opcode,
        line.operands if operands is None else operands,
    )
