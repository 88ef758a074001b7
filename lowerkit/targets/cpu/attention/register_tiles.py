"""Sums of outer products in a tile of vector registers, and the covering of many rows with such tiles.

A tile holds ``height`` rows of ``vectors`` vectors. One step loads ``vectors`` vectors of the right operand and, for
each row, broadcasts one element of the left: ``height + vectors`` loads for ``height * vectors`` FMAs. The left is read
element by element in its natural layout, so it needs no packing. Elements are those of the product's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.targets.cpu.gemm.arithmetic import Arithmetic
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value

__all__ = ["cover_rows", "outer_products"]

Tile = Callable[[Index, int, list[Value]], list[Value]]


def outer_products(
    text: KernelText,
    left: Buffer,
    left_strides: tuple[int, int],
    right: Buffer,
    steps: Index,
    accumulators: Sequence[Value],
    vectors: int,
    arithmetic: Arithmetic,
) -> list[Value]:
    """``accumulators[r, v] += left[r, s] * right[s, v]`` over all steps s.

    Args:
        left_strides: elements of ``left`` between rows and between steps.
        right: rows of ``vectors`` contiguous vectors.
        accumulators: row by row, ``vectors`` each.
    """
    lanes, height = accumulators[0].lanes, len(accumulators) // vectors
    row_stride, step_stride = left_strides
    width = lanes * vectors
    unroll = 2 if isinstance(steps, int) and steps % 2 == 0 else 1
    with text.span(0, steps, unroll, accumulators) as loop:
        sums = list(loop.carried)
        panel = text.part(right, text.imul(loop.index, width))
        scalars = text.part(left, text.imul(loop.index, step_stride))
        for step in range(unroll):
            columns = [text.read(panel, step * width + vector * lanes, lanes) for vector in range(vectors)]
            for row in range(height):
                factor = text.broadcast(text.read(scalars, row * row_stride + step * step_stride), lanes)
                for vector in range(vectors):
                    place = row * vectors + vector
                    sums[place] = arithmetic.multiply_add(text, factor, columns[vector], sums[place])
        text.yield_(sums)
    return loop.results


def cover_rows(text: KernelText, count: Index, height: int, tile: Tile, carried: list[Value]) -> list[Value]:
    """Covers ``count`` rows with tiles of at most ``height`` rows: ``tile(first row, rows, carried values)``.

    A static count is split evenly into tiles of two neighbouring heights. A dynamic one is covered by full tiles of
    which the last is moved back to end at the count (its overlap computes the same numbers again); a count below one
    tile is the sum of tiles of 8, 4, 2 and 1 rows.
    """

    def run(low: Index, high: Index, step: int, values: list[Value], start: Callable[[Value], Index]) -> list[Value]:
        with text.span(low, high, step, values) as loop:
            inner = tile(start(loop.index), step, list(loop.carried))
            if values:
                text.yield_(inner)
        return loop.results

    if isinstance(count, int):
        tiles = -(-count // height)
        base, larger = divmod(count, tiles)
        begin = 0
        for size, number in ((base + 1, larger), (base, tiles - larger)):
            if number:
                carried = run(begin, begin + size * number, size, carried, lambda index: index)
                begin += size * number
        return carried
    small = text.compare("slt", count, text.i64(height))
    left = text.select(small, count, text.i64(0))
    done: Index = 0
    for size in (8, 4, 2, 1):
        end = text.imul(text.idiv(left, size), size)
        carried = run(done, end, size, carried, lambda index: index)
        done = end
    last = text.isub(count, height)
    return run(0, text.select(small, text.i64(0), count), height, carried, lambda index: text.imin(index, last))
