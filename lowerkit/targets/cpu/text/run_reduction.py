"""Sums and extremes of long runs of numbers, kept as accurate as pairwise summation.

A sum runs in ``ACCUMULATORS`` vectors at once (latency of an add is hidden, and each lane sees few terms); every
``BLOCK`` terms they are folded and added to the total with the rounding error of that addition carried along
(two-sum, 6 flops per BLOCK terms). The error is that of adding BLOCK / (lanes * ACCUMULATORS) terms, whatever the
length: 16 terms for 16 lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.targets.cpu.text.kernel_text import Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value, is_float

__all__ = ["cascade_sum", "fold_strip", "fold_values", "sum_strip", "sum_strips"]

ACCUMULATORS = 4
BLOCK = 1024

Term = Callable[[Index, Value | None], Value]
Terms = Callable[[Index, Value | None], Sequence[Value]]


def fold_strip(text: KernelText, count: Index, lanes: int, kind: str, start: Value, term: Term) -> Value:
    """Combines ``term`` over ``count`` elements into one vector.

    Args:
        start: the neutral vector.
        term: gives the vector at an index; where its mask is given, the lanes beyond it must be neutral.
    """
    return _fold_strips(text, count, lanes, kind, [start], lambda index, mask: [term(index, mask)])[0]


def _fold_strips(
    text: KernelText, count: Index, lanes: int, kind: str, start: Sequence[Value], terms: Terms
) -> list[Value]:
    width = len(start)
    copies = max(1, ACCUMULATORS // width)
    if isinstance(count, int):
        copies = max(1, min(copies, -(-count // lanes)))

    def step(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
        values = terms(index, mask)
        newest = [text.combine(kind, old, value) for old, value in zip(carried[:width], values, strict=True)]
        return [*carried[width:], *newest]

    carried = text.strip(count, lanes, step, list(start) * copies, unroll=copies)
    return [fold_values(text, kind, carried[number::width]) for number in range(width)]


def fold_values(text: KernelText, kind: str, values: Sequence[Value]) -> Value:
    """Combines several vectors into one, pairwise."""
    level = list(values)
    while len(level) > 1:
        level = [
            text.combine(kind, level[at], level[at + 1]) if at + 1 < len(level) else level[at]
            for at in range(0, len(level), 2)
        ]
    return level[0]


def sum_strip(text: KernelText, count: Index, lanes: int, zero: Value, term: Term) -> Value:
    """Returns the vector of lane sums of ``term`` over ``count`` elements (see the module for its accuracy)."""
    return sum_strips(text, count, lanes, [zero], lambda index, mask: [term(index, mask)])[0]


def sum_strips(text: KernelText, count: Index, lanes: int, zeros: Sequence[Value], terms: Terms) -> list[Value]:
    """Returns several lane sums that are taken in one walk; ``zeros`` has one zero vector for each of them."""
    if not is_float(zeros[0].element) or (isinstance(count, int) and count <= 2 * BLOCK):
        return _fold_strips(text, count, lanes, "add", zeros, terms)
    whole = text.imul(text.idiv(count, BLOCK), BLOCK)

    def block(start: Index, length: Index) -> list[Value]:
        return _fold_strips(text, length, lanes, "add", zeros, lambda index, mask: terms(text.iadd(start, index), mask))

    sums = cascade_sum(text, whole, BLOCK, zeros, lambda start: block(start, BLOCK))
    rest = text.isub(count, whole)
    tails = list(zeros) if rest == 0 else block(whole, rest)
    return [text.add(total, text.add(lost, tail)) for (total, lost), tail in zip(sums, tails, strict=True)]


def cascade_sum(
    text: KernelText, count: Index, step: Index, zeros: Sequence[Value], block: Callable[[Value], Sequence[Value]]
) -> list[tuple[Value, Value]]:
    """Adds ``block(start)`` for start = 0, step, 2 step, ... below ``count``.

    Returns ``(sum, what its additions lost)`` for each of the values that a block gives; an infinite sum, whose
    difference to the sum before is none, lost nothing.
    """
    width = len(zeros)
    with text.span(0, count, step, [*zeros, *zeros]) as loop:
        totals, losses = loop.carried[:width], loop.carried[width:]
        after: list[Value] = []
        lost: list[Value] = []
        for total, loss, value in zip(totals, losses, block(loop.index), strict=True):
            result = text.add(total, value)
            moved = text.sub(result, total)
            error = text.add(text.sub(total, text.sub(result, moved)), text.sub(value, moved))
            after.append(result)
            lost.append(text.add(loss, error))
        text.yield_([*after, *lost])
    totals, losses = loop.results[:width], loop.results[width:]
    return [
        (total, text.select(text.compare("ord", loss, loss), loss, zero))
        for total, loss, zero in zip(totals, losses, zeros, strict=True)
    ]
