"""Copies operands of a GEMM to scratch in the order in which the register tile reads them.

Rows of A keep their order and get a padded distance (no two rows compete for the same L1 sets) and the accumulator's
type. A panel of B becomes ``[depth, panel]``, from rows of B or, for a transposed B, from its columns by square tile
transpositions in registers. Bytes moved: each element read once and written once.
"""

from __future__ import annotations

from lowerkit.targets.cpu.gemm.tile_selection import Tile
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.text.tile_transpose import transpose_tile

__all__ = ["copy_panel", "copy_rows"]


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
        depth: K.
        columns: N.
        column: first column of the panel.
        tile: shape of the panel.
        target: the copy, of the accumulator's type.
    """
    if transposed:
        _copy_transposed(text, source, depth, columns, column, tile, target)
        return
    whole = columns % tile.panel == 0
    masks: list[Value | None] = [None] * tile.vectors
    if not whole:
        left = text.isub(columns, column)
        masks = [text.mask(text.isub(left, v * tile.lanes), tile.lanes) for v in range(tile.vectors)]
    with text.span(0, depth) as k:
        here = text.part(source, text.iadd(text.imul(k.index, columns), column))
        there = text.part(target, text.imul(k.index, tile.panel))
        for v, mask in enumerate(masks):
            value = text.read(here, v * tile.lanes, tile.lanes, mask)
            text.write(text.widen(value, target.element), there, v * tile.lanes)


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
