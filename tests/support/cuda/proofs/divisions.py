"""Divisions of 64 bits that LLVM wrote twice: of 32 bits too, for numbers that fit, since that is much faster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tests.support.cuda.equivalence.flow import blocks_of, results, sources
from tests.support.cuda.mutants import Line

_HIGH = "-4294967296"  # the upper half of 64 bits
_SAME = "divisions of 32 and of 64 bits give the same below 2^32"


def slow_divisions(ptx: str) -> dict[int, str]:
    """Returns the lines, from 1, that divide numbers of 64 bits, or decide whether to, beside a division of 32 bits.

    The question is whether a number, or one of two joined by ``or``, has a bit above the 32nd; the block that it leads
    to divides 64 bits into a register that another block fills from a division of 32. Below 2^32 both give the same.
    """
    blocks = blocks_of(ptx)
    lines = [line for block in blocks for line in block.lines]
    short = {name for line in lines if re.match(r"(div|rem)\.u32", line.opcode) for name in results(line)}
    widened = {
        name for line in lines if line.opcode == "cvt.u64.u32" and set(sources(line)) <= short for name in results(line)
    }
    questions = _questions(lines)
    found: dict[int, str] = {}
    for number, block in enumerate(blocks):
        divisions = [line for line in block.lines if re.match(r"(div|rem)\.[su]64", line.opcode)]
        asking = [
            before.lines[-1]
            for before in blocks
            if number in before.next and before.lines and before.lines[-1].guard in questions
        ]
        if len(divisions) != 1 or not set(results(divisions[0])) <= widened or not asking:
            continue
        for line in block.lines:
            if line is divisions[0] or line.opcode == "bra.uni":
                found[line.number + 1] = "for numbers of 2^32 and more alone"
        for branch in asking:
            for line in (branch, *questions[branch.guard or ""]):
                found[line.number + 1] = _SAME
    return found


def _questions(lines: Sequence[Line]) -> Mapping[str, Sequence[Line]]:
    """The predicates that say whether there is a bit above the 32nd, each with the lines that ask."""
    writers: dict[str, list[Line]] = {}
    for line in lines:
        for name in results(line):
            writers.setdefault(name, []).append(line)

    def writer(name: str) -> Line | None:
        return writers[name][0] if len(writers.get(name, ())) == 1 else None

    found: dict[str, Sequence[Line]] = {}
    for line in lines:
        if not line.opcode.startswith("setp.ne") or len(sources(line)) != 1:
            continue
        cut = writer(sources(line)[0])
        if cut is None or cut.name != "and" or not cut.operands.endswith(_HIGH):
            continue
        joined = writer(sources(cut)[0])
        asked = (joined, cut, line) if joined is not None and joined.name == "or" else (cut, line)
        found |= dict.fromkeys(results(line), asked)
    return found
