"""bf16 products of rows by panels on AMX tiles: what ``row_gemm`` hands over where the CPU has AMX.

Vocabulary as in ``row_gemm``; a panel is 32 columns, a row tile ``2 * height`` rows. The height is the same for all
tiles of a kernel (see ``amx_tile``) and divides the rows as evenly as it can: 197 rows are 7 tiles of 30. A is read
where it lies; the last, shorter tile is copied to scratch, where rows behind the end may be read.

Per step of 32 depth elements: two tile loads of A and two of B (4 KiB) for four products of 16,384 FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.targets.cpu.gemm.amx_tile import STEP, TILE_COLUMNS, AmxTiles
from lowerkit.targets.cpu.gemm.microkernel import Depth, Prefetch
from lowerkit.targets.cpu.gemm.panel_packing import copy_rows
from lowerkit.targets.cpu.gemm.problem import RowGemm, column_masks
from lowerkit.targets.cpu.gemm.task_order import place_task
from lowerkit.targets.cpu.gemm.tile_epilogue import TileEpilogue, TilePlace
from lowerkit.targets.cpu.gemm.tile_selection import Tile, l2_bytes
from lowerkit.targets.cpu.gemm.weight_packing import Packing
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import DeviceCode, expression, product

__all__ = ["plan_amx_gemm", "takes_amx"]

_PANEL = 2 * TILE_COLUMNS
# Fewer rows are bound by reading B, which vectors do as well.
_FEWEST_ROWS = 5
_LARGE_B = 1 << 19


def takes_amx(problem: RowGemm, cpu: CpuFeatures, for_all_rows: bool = False) -> bool:
    """True when AMX tiles apply: bf16, a constant B, rows of A contiguous, a depth of whole steps, enough rows.

    With ``for_all_rows`` any number of them is enough, so that it hangs on the depth alone.
    """
    enough = for_all_rows or isinstance(problem.rows, Value) or problem.rows >= _FEWEST_ROWS
    return (
        cpu.amx
        and problem.arithmetic.number == "bf16"
        and problem.b_weight is not None
        and problem.a_depth == 1
        and problem.numbers % STEP == 0
        and enough
    )


def tile_height(rows: Index) -> int:
    """Rows of an A tile: 16 for an unknown number, else what splits the rows most evenly."""
    if isinstance(rows, Value):
        return 16
    halves = 2 * -(-rows // 32)
    return -(-rows // halves)


def plan_amx_gemm(
    family: str, problem: RowGemm, frame: KernelFrame, epilogue: TileEpilogue, cpu: CpuFeatures
) -> DeviceCode:
    """Writes the kernel of a problem that :func:`takes_amx` accepts."""
    assert problem.b_weight is not None
    height = tile_height(problem.rows)
    panels = -(-problem.columns // _PANEL)
    cache = l2_bytes(cpu)
    block_tiles = max(1, cache // 2 // (2 * problem.numbers * 2 * height))
    if isinstance(problem.rows, int):
        tiles = -(-problem.rows // (2 * height))
        block_tiles = -(-tiles // -(-tiles // min(block_tiles, tiles)))
    _write(problem, frame, epilogue, height, panels, block_tiles)
    tile_bytes = 4 * 2 * height * _PANEL
    packing = (
        Packing.of("conv_tiles", groups=1)
        if problem.b_is_filter
        else Packing.of("matmul_tiles", transposed=int(problem.b_transposed))
    )
    tiles_extent = expression("ceildiv", problem.rows_extent, 2 * height)
    plan = frame.plan(
        family,
        task_count=product([*problem.batch_extents, tiles_extent, panels]),
        scratch_bytes=tile_bytes + 2 * height * _edge_stride(problem) * 2,
        note=f"AMX bf16, tile {2 * height}x{_PANEL}, blocks of {block_tiles} tiles",
    )
    packings = {problem.b_weight: packing}
    return DeviceCode(plan.family, plan.text, plan.task_count, plan.scratch_bytes, packings, plan.note)


def _edge_stride(problem: RowGemm) -> int:
    return problem.numbers + 32


def _write(
    problem: RowGemm, frame: KernelFrame, epilogue: TileEpilogue, height: int, panels: int, block_tiles: int
) -> None:
    text = frame.text
    rows_per_tile = 2 * height
    tiles = text.iceildiv(problem.rows, rows_per_tile)
    sums = Buffer(frame.scratch.pointer, "f32")
    edge = Buffer(text.offset(frame.scratch.pointer, 4 * rows_per_tile * _PANEL, "i8"), "bf16")
    has_edge = isinstance(problem.rows, Value) or problem.rows % rows_per_tile != 0
    remembered = [text.i64(-1)] if has_edge else []
    shape = Tile(rows_per_tile, 2, TILE_COLUMNS)
    with text.span(Value("%task_begin", "i64"), Value("%task_end", "i64"), 1, remembered) as loop:
        place = place_task(text, loop.index, tiles, panels, block_tiles, bool(problem.batch))
        row = text.imul(place.tile, rows_per_tile)
        count = text.imin(text.isub(problem.rows, row), rows_per_tile) if has_edge else rows_per_tile
        indices = text.unravel(place.batch, problem.batch)
        matrix = text.part(problem.a, text.imul(text.dot(indices, problem.a_batch), problem.rows))
        here = text.part(matrix, text.imul(row, problem.a_row))
        padded = panels * _PANEL * problem.numbers
        strides = [stride // (problem.numbers * problem.columns) * padded for stride in problem.b_batch]
        start = text.iadd(text.dot(indices, strides), text.imul(place.panel, _PANEL * problem.numbers))
        b = text.part(problem.b, start)
        column = text.imul(place.panel, _PANEL)
        fetch = _prefetches(frame, problem, b, panels, block_tiles, place.in_block)
        tiles_writer = AmxTiles(text, height)

        def sum_rows(a: Buffer, a_row: int) -> None:
            pointers = [a.pointer, text.offset(a.pointer, height * a_row, "bf16")]
            depth = [Depth(problem.numbers // STEP, STEP, 0)]
            tiles_writer.accumulate(pointers, a_row, b.pointer, depth, sums, fetch)

        if has_edge:
            whole = text.compare("eq", text.as_value(count), text.i64(rows_per_tile))
            key = text.as_value(place.batch)
            with text.when(whole):
                sum_rows(here, problem.a_row)
            partial = text.binary("arith.xori", whole, text.constant(1, "i1"))
            with text.when(partial):
                with text.when(text.compare("ne", key, loop.carried[0])):
                    copy_rows(text, here, problem.a_row, 1, edge, _edge_stride(problem), count, problem.numbers, 32)
                sum_rows(edge, _edge_stride(problem))
            after: Sequence[Value] = [text.select(partial, key, loop.carried[0])]
        else:
            sum_rows(here, problem.a_row)
            after = []
        masks = column_masks(frame, problem.columns, shape, column)
        place_row = text.iadd(text.imul(place.batch, problem.rows), row)
        epilogue.store_rolled(sums, TILE_COLUMNS, TilePlace(place_row, column, masks, count))
        if after:
            text.yield_(after)


def _prefetches(
    frame: KernelFrame, problem: RowGemm, b: Buffer, panels: int, block_tiles: int, in_block: Index
) -> list[Prefetch]:
    """Each tile of a block fetches its share of the next panel."""
    text = frame.text
    panel_bytes = 2 * problem.numbers * _PANEL
    if block_tiles == 1 or panels * panel_bytes <= _LARGE_B:
        return []
    lines = -(-panel_bytes // 64 // block_tiles)
    start = text.offset(b.pointer, panel_bytes, "i8")
    return [Prefetch(text.offset(start, text.imul(in_block, lines * 64), "i8"), lines, 2)]
