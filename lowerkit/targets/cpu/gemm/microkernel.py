"""The register tile of a GEMM: ``rows`` x ``vectors`` accumulators that stay in registers over the whole depth.

Vocabulary
    depth: the summed dimension (K).
    tile: rows x (vectors * lanes) results, one accumulator register for each row and vector.
    chain: one of several accumulator sets that share the depth, so that a small tile is not bound by FMA latency.
    run: the part of the depth that is summed from zero; the runs' sums are added to the totals.

An element is a number or several of them, an FMA what ``arithmetic.py`` makes of two elements.

Steps, per element of depth: load ``vectors`` registers of B (contiguous), broadcast one element of A per row, and
``rows * vectors`` FMAs. A's rows lie at constant distances from one pointer, which become x86 displacements. After
each run the sums go to the totals, which LLVM keeps on the stack: a sum of n terms in one chain has an error that
grows with the square root of n (13 dB more at n = 4608 than libraries have, which block the depth too).

Bytes moved per depth element: ``vectors * lanes`` elements of B and ``rows`` of A for ``rows * vectors`` FMAs. With
two loads and two FMAs a cycle the tile is compute bound while ``rows + vectors <= rows * vectors``, and B streams from
L2 as long as it takes less than about 32 bytes a cycle: six rows or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cpu.gemm.arithmetic import Arithmetic
from lowerkit.targets.cpu.gemm.tile_selection import Tile
from lowerkit.targets.cpu.text.kernel_text import Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value

__all__ = ["Depth", "Prefetch", "accumulate"]

# Terms of a run: at most so many; adding one to the totals costs a load, an add and a store per register.
_RUN = 320
_LINE = 64
_LINES_PER_STEP = 4


@dataclass(frozen=True)
class Prefetch:
    """Cache lines that the next tile, or the epilogue of this one, needs, fetched while this one is computed.

    Attributes:
        start: first byte.
        lines: lines to fetch over the whole depth, spread evenly; of a number that is known at run time alone at most
            four lines a step.
        locality: 3 fetches into L1, 2 into L2.
        stride: bytes from one line to the next, by default one behind the other.
        write: the lines are to be written.
    """

    start: Value
    lines: Index
    locality: int
    stride: Index = _LINE
    write: bool = False


@dataclass(frozen=True)
class Depth:
    """One loop of the summed dimension, innermost last.

    Attributes:
        count: iterations.
        a_stride: elements of A from one iteration to the next.
        b_stride: elements of B likewise.
    """

    count: int
    a_stride: int
    b_stride: int


def accumulate(
    text: KernelText,
    rows: Sequence[int],
    tile: Tile,
    a: Value,
    b: Value,
    loops: Sequence[Depth],
    arithmetic: Arithmetic,
    b_element: str,
    b_masks: Sequence[Value | None] | None = None,
    unroll: int = 4,
    prefetches: Sequence[Prefetch] = (),
) -> list[Value]:
    """Emits the sums of one tile and returns its accumulators, row after row.

    Args:
        text: where the ops go.
        rows: distance of each row of A from ``a``, in elements.
        tile: shape; the number of rows is that of ``rows``.
        a: first element of A, of the type in which it is multiplied.
        b: first element of B, of ``b_element`` (widened on load where it is narrower).
        loops: the summed dimension as nested loops, outermost first.
        arithmetic: how elements are multiplied and summed.
        b_element: type of B in memory.
        b_masks: one mask per vector for rows of B that must not be read to the end; None reads all.
        unroll: depth elements per step of the innermost loop.
        prefetches: what to fetch meanwhile.
    """
    lanes, vectors = tile.lanes, tile.vectors
    size = len(rows) * vectors
    element, multiply_add = arithmetic.operand, arithmetic.multiply_add
    loops, rest, boundary = _cut_into_runs(loops) if arithmetic.blocked_sums else (list(loops), None, 0)
    wanted = 1 if text.invariant else tile.chains(len(rows), arithmetic.latency)
    steps = _steps(loops[-1].count, wanted, unroll)
    chains = min(wanted, max(steps, 1))
    masks = b_masks or [None] * vectors
    zero = text.constant(0, arithmetic.accumulator, lanes)

    def element_step(a_at: Value, b_at: Value, loop: Depth, number: int, values: list[Value]) -> None:
        chain = (number % chains) * size
        b_row = [
            text.widen(
                text.load(text.offset(b_at, number * loop.b_stride + v * lanes, b_element), b_element, lanes, masks[v]),
                element,
            )
            for v in range(vectors)
        ]
        for r, distance in enumerate(rows):
            scalar = text.load(text.offset(a_at, distance + number * loop.a_stride, element), element)
            wide = text.broadcast(scalar, lanes)
            for v in range(vectors):
                at = chain + r * vectors + v
                values[at] = multiply_add(text, wide, b_row[v], values[at])

    whole_steps = loops[-1].count // steps
    total_steps = max(1, math.prod(loop.count for loop in loops[:-1]) * whole_steps)

    shares = [text.iceildiv(prefetch.lines, total_steps) for prefetch in prefetches]
    shares = [share if isinstance(share, int) else text.imin(share, _LINES_PER_STEP) for share in shares]

    def fetch(step: Index) -> None:
        for prefetch, share in zip(prefetches, shares, strict=True):
            first = text.imul(step, share)
            if prefetch.stride != _LINE:  # lines apart from each other: those behind the last are of no use
                assert isinstance(share, int)
                first = text.imin(first, text.isub(prefetch.lines, share))
            base = text.offset(prefetch.start, text.imul(first, prefetch.stride), "i8")
            for line in range(share if isinstance(share, int) else _LINES_PER_STEP):
                text.prefetch(
                    text.offset(base, text.imul(prefetch.stride, line), "i8"), prefetch.locality, prefetch.write
                )

    def innermost(loop: Depth, a_at: Value, b_at: Value, step: Index, values: list[Value]) -> list[Value]:
        steps = _steps(loop.count, chains, unroll)
        end, values = loop.count // steps * steps, list(values)
        if end == steps:
            for number in range(steps):
                element_step(a_at, b_at, loop, number, values)
            fetch(step)
        else:
            with text.span(0, end, steps, values) as span:
                inside_values = list(span.carried)
                a_now = text.offset(a_at, text.imul(span.index, loop.a_stride), element)
                b_now = text.offset(b_at, text.imul(span.index, loop.b_stride), b_element)
                for number in range(steps):
                    element_step(a_now, b_now, loop, number, inside_values)
                if prefetches:
                    fetch(text.iadd(step, text.idiv(span.index, steps)))
                text.yield_(inside_values)
            values = list(span.results)
        a_rest = text.offset(a_at, end * loop.a_stride, element)
        b_rest = text.offset(b_at, end * loop.b_stride, b_element)
        for number in range(loop.count - end):
            element_step(a_rest, b_rest, loop, number, values)
        return values

    def add_run(loop: Depth | None, a_at: Value, b_at: Value, step: Index, totals: list[Value]) -> list[Value]:
        """One run, over ``loop`` or else the loops within the boundary, added to the totals."""
        sums = [zero] * (size * chains)
        sums = nest(boundary, a_at, b_at, step, sums) if loop is None else innermost(loop, a_at, b_at, step, sums)
        while len(sums) > size:
            half = len(sums) // size // 2 * size
            odd = sums[2 * half :]
            sums = [text.add(x, y) for x, y in zip(sums[:half], sums[half : 2 * half], strict=True)] + odd
        return [text.add(total, value) for total, value in zip(totals, sums, strict=True)] if totals else sums

    def nest(level: int, a_at: Value, b_at: Value, step: Index, values: list[Value]) -> list[Value]:
        """The loops from ``level`` on: outside the boundary ``values`` are totals, within it the sums of a run."""
        loop, is_last = loops[level], level == len(loops) - 1
        if is_last and level >= boundary:
            return innermost(loop, a_at, b_at, step, values)

        def body(a_now: Value, b_now: Value, now: Index, carried: list[Value]) -> list[Value]:
            if level + 1 == boundary:
                return add_run(None, a_now, b_now, now, carried)
            return nest(level + 1, a_now, b_now, now, carried)

        if loop.count == 1:
            values = body(a_at, b_at, step, values)
        else:
            inside = math.prod(loop.count for loop in loops[level + 1 : -1]) * whole_steps
            with text.span(0, loop.count, 1, values) as span:
                a_now = text.offset(a_at, text.imul(span.index, loop.a_stride), element)
                b_now = text.offset(b_at, text.imul(span.index, loop.b_stride), b_element)
                now = text.iadd(step, text.imul(span.index, inside)) if prefetches else 0
                text.yield_(body(a_now, b_now, now, list(span.carried)))
            values = list(span.results)
        if rest is not None and level + 1 == boundary:
            a_rest = text.offset(a_at, loop.count * loop.a_stride, element)
            b_rest = text.offset(b_at, loop.count * loop.b_stride, b_element)
            values = add_run(rest, a_rest, b_rest, step, values)
        return values

    if boundary == 0:
        return add_run(None, a, b, 0, [])
    return nest(0, a, b, 0, [zero] * size)


def _steps(count: int, chains: int, unroll: int) -> int:
    """Returns the depth elements per step: a divisor of the count needs no remainder loop; a short one is one step."""
    if count <= unroll:
        return count
    divisors = (u for u in range(chains, max(unroll, chains) + 1) if count % u == 0)
    return max(divisors, default=unroll)


def _cut_into_runs(loops: Sequence[Depth]) -> tuple[list[Depth], Depth | None, int]:
    """Returns the loops with a long innermost one split, what the split leaves over, and the first level of a run."""
    *outer, inner = loops
    rest = None
    if inner.count > _RUN:
        whole = (n for n in range(_RUN, _RUN // 4, -1) if inner.count % n == 0)
        length = next((n for n in whole if n % 4 == 0), _RUN)
        parts, left = divmod(inner.count, length)
        outer.append(Depth(parts, inner.a_stride * length, inner.b_stride * length))
        rest = Depth(left, inner.a_stride, inner.b_stride) if left else None
        inner = Depth(length, inner.a_stride, inner.b_stride)
        return [*outer, inner], rest, len(outer)
    boundary, terms = len(outer), inner.count
    while boundary and terms * outer[boundary - 1].count <= _RUN:
        boundary -= 1
        terms *= outer[boundary].count
    return [*outer, inner], None, boundary
