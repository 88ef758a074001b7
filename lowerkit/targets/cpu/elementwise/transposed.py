"""Elementwise kernels with a transposed operand: the vectorized loop of the output is strided in it.

Vocabulary
    columns (v)  the innermost group: contiguous in the output.
    rows (u)     the group along which the transposed operands are contiguous.

Two ways:
    square   lanes x lanes tiles: load ``lanes`` vectors along u, transpose them in registers, go on along v. Both
             sides touch whole cache lines; blocks of 4 tiles along u keep the reads sequential.
    narrow   v is tiny (images with 3 channels): compute on vectors along u, and interleave the v result vectors
             into contiguous ones before they are stored: v - 1 shuffles a vector.
Bytes: every operand once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowerkit.targets.cpu.elementwise.contiguous import apply_body
from lowerkit.targets.cpu.elementwise.loop_nest import ElementwiseNest
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.linear_access import Access
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.text.tile_transpose import transpose_tile
from lowerkit.targets.plan import KernelExpr, expression, product

__all__ = ["emit_narrow", "emit_square", "narrow_rows", "square_rows"]

Point = Callable[[Index, Index], list[Index]]

_TILES_PER_TASK = 4
_NARROW = 8
# From here on the body is written once, in a loop over a tile in scratch, instead of once per row of the tile.
_STAGED_OPS = 4


def square_rows(nest: ElementwiseNest) -> int | None:
    """Returns the group u of the square way, None where no operand is transposed."""
    inner = len(nest.groups) - 1
    for source in nest.inputs:
        if isinstance(source, Access) and inner >= 0 and source.strides[inner] not in (0, 1):
            for group in range(inner):
                if (
                    source.strides[group] == 1
                    and not _tiny(nest.groups[group].size)
                    and not _tiny(nest.groups[inner].size)
                ):
                    return group
    return None


def narrow_rows(nest: ElementwiseNest) -> int | None:
    """Returns the group u of the narrow way: the one around a tiny innermost group, contiguous in some input."""
    inner = len(nest.groups) - 1
    if inner < 1:
        return None
    size, group = nest.groups[inner].size, inner - 1
    if not isinstance(size, int) or not 2 <= size <= _NARROW or _tiny(nest.groups[group].size):
        return None
    if any(access.strides[group] != size or access.buffer.element == "i1" for access in nest.outputs):
        return None
    reads = [source for source in nest.inputs if isinstance(source, Access)]
    if not any(source.strides[group] == 1 for source in reads):
        return None
    return group if all(source.strides[group] in (0, 1) for source in reads) else None


def _tiny(size: Index) -> bool:
    return isinstance(size, int) and size < 4


@dataclass(frozen=True)
class _Side:
    """One side of a tile: where it starts, how many of its lanes exist, and their mask (None: all)."""

    start: Index
    count: Index
    mask: Value | None


def emit_square(frame: KernelFrame, nest: ElementwiseNest, rows: int, vector_bits: int) -> tuple[KernelExpr, int]:
    """Writes the kernel of the square way; returns its task count and scratch bytes."""
    text = frame.text
    inner = len(nest.groups) - 1
    turned = {
        number: source
        for number, source in enumerate(nest.inputs)
        if isinstance(source, Access) and source.strides[rows] == 1 and source.strides[inner] not in (0, 1)
    }
    widest = max(source.buffer.bytes for source in turned.values())
    lanes = vector_bits // (8 * max(4, widest))
    others = [group for group in range(inner) if group != rows]
    block = lanes * _TILES_PER_TASK
    row_size, column_size = nest.groups[rows].size, nest.groups[inner].size
    staged = nest.body is not None and nest.body.op_count > _STAGED_OPS
    tile_bytes = lanes * lanes * 8

    with frame.tasks() as task:
        blocks = text.iceildiv(row_size, block)
        first = text.imul(text.irem(task, blocks), block)
        outer = text.unravel(text.idiv(task, blocks), [nest.groups[group].size for group in others])
        whole = isinstance(row_size, int) and row_size % block == 0
        count = block if whole else text.imin(block, text.isub(row_size, first))

        def point(row: Index, column: Index) -> list[Index]:
            place: list[Index] = [0] * len(nest.groups)
            for group, coordinate in zip(others, outer, strict=True):
                place[group] = coordinate
            place[rows], place[inner] = row, column
            return place

        def tile(row: _Side, column: _Side) -> None:
            vectors = {
                number: _turn(text, source, point, row, column, column_size, lanes) for number, source in turned.items()
            }
            if staged:
                _finish_staged(frame, nest, point, row, column, vectors, lanes, tile_bytes)
                return
            for lane in range(lanes):
                if isinstance(row.count, int):
                    if lane >= row.count:
                        break
                    _finish_row(
                        frame,
                        nest,
                        point(text.iadd(row.start, lane), column.start),
                        inner,
                        lanes,
                        column.mask,
                        {number: tile_rows[lane] for number, tile_rows in vectors.items()},
                    )
                else:
                    with text.when(text.compare("slt", text.i64(lane), row.count)):
                        place = point(text.iadd(row.start, lane), column.start)
                        _finish_row(
                            frame,
                            nest,
                            place,
                            inner,
                            lanes,
                            column.mask,
                            {number: tile_rows[lane] for number, tile_rows in vectors.items()},
                        )

        def over_columns(column: Index, column_mask: Value | None, carried: list[Value]) -> list[Value]:
            side = _Side(column, lanes if column_mask is None else text.isub(column_size, column), column_mask)

            def over_rows(row: Index, row_mask: Value | None, inside: list[Value]) -> list[Value]:
                start = text.iadd(first, row)
                tile(_Side(start, lanes if row_mask is None else text.isub(count, row), row_mask), side)
                return inside

            text.strip(count, lanes, over_rows, guard_tail=True)
            return carried

        text.strip(column_size, lanes, over_columns, guard_tail=True)
    extents = [nest.groups[group].extent for group in others]
    tasks = expression("mul", product(extents), expression("ceildiv", nest.groups[rows].extent, block))
    return tasks, tile_bytes * len(turned) if staged else 0


def _turn(
    text: KernelText, source: Access, point: Point, row: _Side, column: _Side, column_size: Index, lanes: int
) -> list[Value]:
    """Loads one tile along u and returns its vectors along v."""
    element = source.buffer.element
    stored = Buffer(source.buffer.pointer, "i8") if element == "i1" else source.buffer
    travelling = {"i1": "i8", "f16": "i16", "bf16": "i16"}.get(element, element)
    vectors: list[Value] = []
    for lane in range(lanes):
        at = text.iadd(column.start, lane)
        if column.mask is not None and isinstance(column.count, int) and lane >= column.count:
            vectors.append(text.constant(0, travelling, lanes))
            continue
        if column.mask is not None and not isinstance(column.count, int):
            at = text.imin(at, text.isub(column_size, 1))
        vector = text.read(stored, source.at(text, point(row.start, at)), lanes, row.mask)
        vectors.append(vector if vector.element == travelling else text.bitcast(vector, travelling))
    turned = transpose_tile(text, vectors)
    if element == "i1":
        return [text.compare("ne", vector, text.like(0, vector)) for vector in turned]
    return [vector if travelling == element else text.bitcast(vector, element) for vector in turned]


def _finish_row(
    frame: KernelFrame,
    nest: ElementwiseNest,
    place: list[Index],
    inner: int,
    lanes: int,
    mask: Value | None,
    given: dict[int, Value],
) -> None:
    outputs = apply_body(frame, nest, place, inner, lanes, mask, given)
    for value, access in zip(outputs, nest.outputs, strict=True):
        frame.text.strided_write(value, access.buffer, access.at(frame.text, place), access.strides[inner], mask)


def _finish_staged(
    frame: KernelFrame,
    nest: ElementwiseNest,
    point: Point,
    row: _Side,
    column: _Side,
    vectors: dict[int, list[Value]],
    lanes: int,
    tile_bytes: int,
) -> None:
    """Puts the turned tiles into scratch and runs the body in a loop over their rows."""
    text, inner = frame.text, len(nest.groups) - 1
    tiles: dict[int, Buffer] = {}
    for order, (number, tile_rows) in enumerate(vectors.items()):
        start = text.part(Buffer(frame.scratch.pointer, "i8"), order * tile_bytes)
        tiles[number] = Buffer(start.pointer, tile_rows[0].element)
        for lane, vector in enumerate(tile_rows):
            text.write(vector, tiles[number], lane * lanes)
    with text.span(0, row.count) as loop:
        given = {number: text.read(tile, text.imul(loop.index, lanes), lanes) for number, tile in tiles.items()}
        place = point(text.iadd(row.start, loop.index), column.start)
        _finish_row(frame, nest, place, inner, lanes, column.mask, given)


def emit_narrow(frame: KernelFrame, nest: ElementwiseNest, rows: int, lanes: int) -> KernelExpr:
    """Writes the kernel of the narrow way and returns its task count."""
    text = frame.text
    inner = len(nest.groups) - 1
    columns, row_size = nest.groups[inner].size, nest.groups[rows].size
    assert isinstance(columns, int)
    outer_groups = nest.groups[:rows]
    block = max(lanes, nest.grain() // columns // lanes * lanes)
    with frame.tasks() as task:
        blocks = text.iceildiv(row_size, block)
        first = text.imul(text.irem(task, blocks), block)
        outer = text.unravel(text.idiv(task, blocks), [group.size for group in outer_groups])
        count = text.imin(block, text.isub(row_size, first)) if row_size != block else block

        def step(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            row = text.iadd(first, index)
            results = [apply_body(frame, nest, [*outer, row, column], rows, lanes, mask) for column in range(columns)]
            for number, access in enumerate(nest.outputs):
                start = access.at(text, [*outer, row, 0])
                whole = _interleave(text, [outputs[number] for outputs in results])
                for part, vector in enumerate(whole):
                    keep = None
                    if mask is not None:
                        left = text.imul(text.isub(count, index), columns)
                        keep = text.mask(text.isub(left, part * lanes), lanes)
                    text.write(vector, access.buffer, text.iadd(start, part * lanes), keep)
            return carried

        text.strip(count, lanes, step)
    extent = expression("ceildiv", nest.groups[rows].extent, block)
    return expression("mul", product([group.extent for group in outer_groups]), extent)


def _interleave(text: KernelText, vectors: list[Value]) -> list[Value]:
    """Returns the contiguous vectors of ``x0[0], x1[0], ..., x0[1], x1[1], ...``."""
    element, lanes, count = vectors[0].element, vectors[0].lanes, len(vectors)
    narrow = element in ("f16", "bf16")
    parts = [text.bitcast(vector, "i16") for vector in vectors] if narrow else vectors
    results: list[Value] = []
    for part in range(count):
        origins = [divmod(part * lanes + lane, count) for lane in range(lanes)]
        mixed = text.shuffle(parts[0], parts[1], [at + lanes * min(which, 1) for at, which in origins])
        for number in range(2, count):
            picks = [lanes + at if which == number else lane for lane, (at, which) in enumerate(origins)]
            mixed = text.shuffle(mixed, parts[number], picks)
        results.append(text.bitcast(mixed, element) if narrow else mixed)
    return results
