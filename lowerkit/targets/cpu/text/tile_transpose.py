"""Transposes a square tile held in vector registers, and rows of any length tile by tile.

The network has log2(n) stages; stage k swaps, in each pair of rows i and i + 2^k, the off-diagonal 2^k x 2^k blocks:
n * log2(n) two-input shuffles for n * n elements, each one instruction with AVX-512 and at most two with AVX2.
No memory is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value, vector_type

__all__ = ["interleave", "transpose_rows", "transpose_tile"]


def interleave(text: TextBuilder, low: Value, high: Value) -> Value:
    """Returns ``i32`` lanes that hold a 16-bit lane of ``low`` in their lower half and one of ``high`` above."""
    lanes = low.lanes
    halves = [text.bitcast(value, "i16") for value in (low, high)]
    mixed = text.shuffle(halves[0], halves[1], [lane // 2 + lanes * (lane % 2) for lane in range(2 * lanes)])
    kind = vector_type("i32", lanes)
    return text.op(f"vector.bitcast {mixed} : {mixed.type} to {kind}", kind)


def transpose_tile(text: TextBuilder, rows: Sequence[Value]) -> list[Value]:
    """Returns the columns of a square tile given as its rows.

    Args:
        rows: n vectors of n lanes each, n a power of two. Narrow floats travel as integers of their width, because
            LLVM shuffles those without conversions.
    """
    count = len(rows)
    assert count & (count - 1) == 0, "a power of two"
    assert all(row.lanes == count for row in rows), "a square tile"
    tile = list(rows)
    distance = 1
    while distance < count:
        for first in range(count):
            if first & distance:
                continue
            a, b = tile[first], tile[first + distance]
            upper = [lane if not lane & distance else count + (lane ^ distance) for lane in range(count)]
            lower = [lane ^ distance if not lane & distance else count + lane for lane in range(count)]
            tile[first] = text.shuffle(a, b, upper)
            tile[first + distance] = text.shuffle(a, b, lower)
        distance *= 2
    return tile


def transpose_rows(
    text: KernelText,
    lanes: int,
    groups: int,
    read: Callable[[int, Index, Value | None], Value],
    count: Index,
    target: Buffer,
) -> None:
    """Writes ``target[column, row] = read(row, column)`` for ``groups * lanes`` rows and ``count`` columns.

    Args:
        read: gives the ``lanes`` elements of a row from a column on; the mask is as in :meth:`KernelText.strip`.
    """
    rows = groups * lanes

    def tile(column: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
        for group in range(groups):
            vectors = transpose_tile(text, [read(group * lanes + lane, column, mask) for lane in range(lanes)])
            left = text.isub(count, column)
            for lane, vector in enumerate(vectors):
                if isinstance(left, int) and lane >= left:
                    break
                at = text.iadd(text.imul(text.iadd(column, lane), rows), group * lanes)
                if mask is not None and not isinstance(left, int):
                    with text.when(text.compare("slt", text.i64(lane), left)):
                        text.write(vector, target, at)
                else:
                    text.write(vector, target, at)
        return carried

    text.strip(count, lanes, tile)
