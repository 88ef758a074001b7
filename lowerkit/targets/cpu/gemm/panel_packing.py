"""Copies operands of a GEMM to scratch in the order in which the register tile reads them.

Rows of A keep their order and get a padded distance (no two rows compete for the same L1 sets) and the type in which
they are multiplied. A panel of B becomes ``[depth, panel]``, from rows of B or, for a transposed B, from its columns by
square tile transpositions in registers. Bytes moved: each element read once and written once.

Pairs of bf16 (``arithmetic.py``): rows of A are pairs as they lie, those of a B that is not transposed are brought
together two by two. What the last pair lacks at an odd depth is zero.
"""

from __future__ import annotations

from lowerkit.targets.cpu.gemm.tile_selection import Tile
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.text.tile_transpose import interleave, transpose_tile

__all__ = ["copy_panel", "copy_rows", "pair_rows"]


def copy_rows(
    text: KernelText,
    source: Buffer,
    row_stride: int,
    element_stride: int,
    target: Buffer,
    target_stride: int,
    rows: Index,
    length: int,
    lanes: int,
) -> None:
    """Copies ``rows`` rows of ``length`` elements, widened to the element of ``target``.

    Args:
        text: where the ops go.
        source: first element.
        row_stride: elements from one row of the source to the next.
        element_stride: elements between neighbours within a source row.
        target: first element of the copy, whose rows are contiguous and ``target_stride`` apart.
        target_stride: see ``target``.
        rows: number of rows.
        length: elements of a row.
        lanes: elements of a vector of the target's type.
    """
    with text.span(0, rows) as row:
        here = text.part(source, text.imul(row.index, row_stride))
        there = text.part(target, text.imul(row.index, target_stride))

        def body(at: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            place = text.imul(at, element_stride)
            value = text.strided_read(here, place, element_stride, lanes, mask)
            text.write(text.widen(value, target.element), there, at, mask)
            return carried

        text.strip(length, lanes, body, unroll=4)


def pair_rows(
    text: KernelText,
    source: Buffer,
    row_stride: int,
    number_stride: int,
    target: Buffer,
    target_stride: int,
    rows: Index,
    numbers: int,
    lanes: int,
) -> None:
    """Copies ``rows`` rows of ``numbers`` bf16 to rows of pairs; as :func:`copy_rows`, with strides of the source in
    numbers and those of the target in pairs."""
    halves = Buffer(target.pointer, source.element)
    if numbers % 2:
        with text.span(0, rows) as row:
            at = text.iadd(text.imul(row.index, 2 * target_stride), numbers)
            text.write(text.constant(0, source.element), halves, at)
    copy_rows(text, source, row_stride, number_stride, halves, 2 * target_stride, rows, numbers, 2 * lanes)


def copy_panel(
    text: KernelText,
    source: Buffer,
    transposed: bool,
    depth: int,
    columns: int,
    column: Index,
    tile: Tile,
    target: Buffer,
) -> None:
    """Copies the panel of B that starts at ``column`` to ``target`` as ``[depth, tile.panel]``.

    Columns behind the last one are filled with arbitrary finite or infinite values of B: their sums are never stored.

    Args:
        text: where the ops go.
        source: B, ``[depth, columns]``, or ``[columns, depth]`` when ``transposed``.
        transposed: see ``source``.
        depth: K, in numbers; an even one where B is transposed and the target has pairs.
        columns: N.
        column: first column of the panel.
        tile: shape of the panel.
        target: the copy, of the type that is multiplied; ``i32`` for pairs of bf16.
    """
    paired = target.element == "i32"
    if transposed:
        if paired:
            assert depth % 2 == 0, "rows of whole pairs"
            source, depth = Buffer(source.pointer, target.element), depth // 2
        _copy_transposed(text, source, depth, columns, column, tile, target)
        return
    whole = columns % tile.panel == 0
    masks: list[Value | None] = [None] * tile.vectors
    if not whole:
        left = text.isub(columns, column)
        masks = [text.mask(text.isub(left, v * tile.lanes), tile.lanes) for v in range(tile.vectors)]
    if paired:
        _pair_panel(text, source, depth, columns, column, tile, target, masks)
        return
    with text.span(0, depth) as k:
        here = text.part(source, text.iadd(text.imul(k.index, columns), column))
        there = text.part(target, text.imul(k.index, tile.panel))
        for v, mask in enumerate(masks):
            value = text.read(here, v * tile.lanes, tile.lanes, mask)
            text.write(text.widen(value, target.element), there, v * tile.lanes)


def _pair_panel(
    text: KernelText,
    source: Buffer,
    depth: int,
    columns: int,
    column: Index,
    tile: Tile,
    target: Buffer,
    masks: list[Value | None],
) -> None:
    """Rows 2k and 2k + 1 of B side by side; behind an odd last row stands zero."""

    def pair(k: Index, second: bool) -> None:
        here = text.part(source, text.iadd(text.imul(k, 2 * columns), column))
        there = text.part(target, text.imul(k, tile.panel))
        for v, mask in enumerate(masks):
            low = text.read(here, v * tile.lanes, tile.lanes, mask)
            high = text.read(here, columns + v * tile.lanes, tile.lanes, mask) if second else text.like(0, low)
            text.write(interleave(text, low, high), there, v * tile.lanes)

    if depth > 1:
        with text.span(0, depth // 2) as k:
            pair(k.index, second=True)
    if depth % 2:
        pair(depth // 2, second=False)


def _copy_transposed(
    text: KernelText, source: Buffer, depth: int, columns: int, column: Index, tile: Tile, target: Buffer
) -> None:
    """Square tiles of lanes x lanes: rows are columns of B; those behind the last column repeat it."""
    lanes = tile.lanes
    last = columns - 1

    def square(first: Index, at: Index, count: int) -> None:
        mask = None if count == lanes else text.mask(count, lanes)
        rows: list[Value] = []
        for lane in range(lanes):
            own = text.iadd(first, lane)
            own = own if columns % tile.panel == 0 else text.imin(own, last)
            value = text.read(source, text.iadd(text.imul(own, depth), at), lanes, mask)
            rows.append(text.widen(value, target.element))
        offset = text.isub(first, column)
        for k, value in enumerate(transpose_tile(text, rows)[:count]):
            text.write(value, target, text.iadd(text.imul(text.iadd(at, k), tile.panel), offset))

    with text.span(0, tile.vectors) as group:
        first = text.iadd(column, text.imul(group.index, lanes))
        whole = depth // lanes * lanes
        if whole:
            with text.span(0, whole, lanes) as step:
                square(first, step.index, lanes)
        if depth > whole:
            square(first, whole, depth - whole)
