"""Basic blocks of a kernel, where control goes from them, and which registers are read behind them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tests.support.cuda.mutants import REGISTER, Line, instructions, split_operands

LABEL = re.compile(r"^\s*(?!\$L__tmp)([$\w]+):(?!:)")
_WITHOUT_RESULT = frozenset({"st", "bar", "red", "cp", "fence", "membar", "bra", "ret", "stmatrix"})


@dataclass
class Block:
    """Instructions that run one after another.

    Attributes:
        lines: the instructions.
        next: the numbers of the blocks that may follow.
        live: registers that are read behind it before they are written.
    """

    lines: list[Line] = field(default_factory=list[Line])
    next: list[int] = field(default_factory=list[int])
    live: set[str] = field(default_factory=set[str])


def blocks_of(ptx: str, never: Collection[int] = ()) -> Sequence[Block]:
    """Returns the blocks of a text, in its order; ``never`` has the lines, from 0, of branches that are never taken."""
    text = ptx.splitlines()
    lines = {line.number: line for line in instructions(ptx)}
    blocks = [Block()]
    labels: dict[str, list[tuple[int, int]]] = {}  # of assembly within braces there may be several of one name
    for number, raw in enumerate(text):
        label = LABEL.match(raw)
        if label is not None:
            if blocks[-1].lines:
                blocks.append(Block())
            labels.setdefault(label[1], []).append((number, len(blocks) - 1))
        line = lines.get(number)
        if line is not None:
            blocks[-1].lines.append(line)
            if line.name in ("bra", "ret"):
                blocks.append(Block())
    for number, block in enumerate(blocks):
        last = block.lines[-1] if block.lines else None
        if last is not None and last.name == "bra" and last.number not in never:
            at = last.number
            block.next.append(min(labels[last.operands.strip()], key=lambda place: abs(place[0] - at))[1])
        leaves = last is not None and last.name in ("bra", "ret") and last.guard is None
        if not leaves and number + 1 < len(blocks):
            block.next.append(number + 1)
    _find_live(blocks)
    return blocks


def _find_live(blocks: Sequence[Block]) -> None:
    needs: list[tuple[set[str], set[str]]] = []
    for block in blocks:
        read: set[str] = set()
        written: set[str] = set()
        for line in block.lines:
            read |= {*sources(line), *guards(line)} - written
            if line.guard is None:
                written |= set(results(line))
        needs.append((read, written))
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            live = {name for each in block.next for name in needs[each][0] | (blocks[each].live - needs[each][1])}
            changed |= live != block.live
            block.live = live


def results(line: Line) -> list[str]:
    """Returns the registers that an instruction writes."""
    if line.name in _WITHOUT_RESULT or not line.operands:
        return []
    return [name for name, _ in REGISTER.findall(split_operands(line.operands)[0])]


def sources(line: Line) -> list[str]:
    """Returns the registers that an instruction reads, but for its predicate."""
    operands = split_operands(line.operands)
    behind = operands[1:] if results(line) else operands
    return [name for operand in behind for name, _ in REGISTER.findall(operand)]


def guards(line: Line) -> list[str]:
    """Returns the predicate of an instruction."""
    return [] if line.guard is None else [line.guard]
