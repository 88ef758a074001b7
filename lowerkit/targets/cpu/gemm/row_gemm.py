"""Register-tiled products of rows by packed panels: the writer behind ``matmul`` and pointwise convolutions.

Vocabulary
    panel: the columns of one register tile, for all of K; contiguous, so that B streams.
    block: row tiles whose part of A stays in L2 while the panels go by.
    task: one register tile. Tasks are ordered (batch, block, panel, tile), so that a thread's contiguous range reuses
        one panel for the tiles of a block, and one block of A for all panels.

Steps of a task
    1. split the task number into batch, block, panel, tile;
    2. when the block changed: copy A's rows to scratch, if they are widened (once rather than in each tile), if they
       are single numbers that an element holds several of, or if they lie at a distance that makes them evict each
       other from L1 (multiples of 4 KiB);
    3. when the panel changed: copy B's panel to scratch, if B is a runtime tensor that is transposed, used often, or of
       single numbers likewise;
    4. sum ``rows x panel`` products over K in registers (``microkernel``);
    5. round, apply the epilogue, store (``tile_epilogue``).

Rows are split evenly (128 rows are 8 tiles of 13 and 2 of 12, not 9 of 14 and one of 2); columns are padded with zeros
in the packed panels and masked at the store.

Bytes moved per block and panel: ``K * panel`` of B from L2 per tile, A once from memory per block; per result
``2 * K`` FLOPs for ``K * (1/rows + 1/panel)`` elements. With one row everything is bound by reading B once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cpu.gemm.amx_gemm import plan_amx_gemm, takes_amx
from lowerkit.targets.cpu.gemm.arithmetic import takes_pairs
from lowerkit.targets.cpu.gemm.microkernel import Depth, Prefetch, accumulate
from lowerkit.targets.cpu.gemm.panel_packing import copy_panel, copy_rows, pair_rows
from lowerkit.targets.cpu.gemm.problem import RowGemm, column_masks, in_pairs
from lowerkit.targets.cpu.gemm.task_order import TaskPlace, place_task, tile_start
from lowerkit.targets.cpu.gemm.tile_epilogue import TileEpilogue, TilePlace
from lowerkit.targets.cpu.gemm.tile_selection import MOST_CHAINS, Tile, choose_tile, evict_each_other, l2_bytes
from lowerkit.targets.cpu.gemm.weight_packing import Packing, panel_layout
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.text_builder import Value, element_bytes
from lowerkit.targets.plan import DeviceCode, expression, product

__all__ = ["plan_row_gemm"]

_PAD_BYTES = 64
# Rows of A up to this many elements are prefetched by software.
_SHORT_ROWS = 512
# A packed B beyond this many bytes is not expected in L2 from one call to the next.
_LARGE_B = 1 << 19


@dataclass(frozen=True)
class _Scheme:
    """How a :class:`RowGemm` is cut into tiles.

    Attributes:
        tile: the register tile.
        panels: column panels.
        block_tiles: row tiles per block of A.
        copy_a: A's blocks go through scratch, with this many elements between rows; 0 reads A where it lies.
        copy_b: B's panels go through scratch.
    """

    tile: Tile
    panels: int
    block_tiles: int
    copy_a: int
    copy_b: bool


def choose_scheme(problem: RowGemm, cpu: CpuFeatures, most_chains: int = MOST_CHAINS) -> _Scheme:
    """Chooses tile, blocks and copies from sizes and caches."""
    accumulator = problem.accumulator
    lanes = cpu.lanes(8 * element_bytes(accumulator))
    rows = problem.rows if isinstance(problem.rows, int) else None
    tile = choose_tile(rows, problem.columns, problem.depth, lanes, cpu.vector_registers, most_chains=most_chains)
    panels = -(-problem.columns // tile.panel)
    bytes_ = element_bytes(accumulator)
    row_bytes = problem.depth * bytes_
    tiles = -(-rows // tile.rows) if rows is not None else None
    copy_a = 0
    converts = problem.a.element != problem.arithmetic.operand
    if problem.a_depth == 1:
        thrashes = evict_each_other(tile.rows, problem.a_row * bytes_) and panels > 1
        if converts or thrashes:
            padding = _PAD_BYTES // bytes_
            copy_a = -(-problem.depth // padding) * padding + padding
    elif converts:
        copy_a = problem.depth + _PAD_BYTES // bytes_
    cache = l2_bytes(cpu)
    most = max(cache // 4 // row_bytes // tile.rows, min(16, 3 * cache // 4 // row_bytes // tile.rows), 1)
    block = min(most, tiles) if tiles is not None else most
    if tiles is not None:
        block = -(-tiles // -(-tiles // block))
    copy_b = problem.b_weight is None and (
        problem.b_transposed or tiles is None or tiles >= 4 or problem.b.element != problem.arithmetic.stored
    )
    return _Scheme(tile, panels, block, copy_a, copy_b)


def plan_row_gemm(
    family: str, problem: RowGemm, frame: KernelFrame, epilogue: TileEpilogue, cpu: CpuFeatures
) -> DeviceCode:
    """Writes the kernel of a :class:`RowGemm` whose result rows are numbered (batch, rows); ``frame`` has its head."""
    invariant = frame.text.invariant
    if takes_amx(problem, cpu, for_all_rows=invariant):
        return plan_amx_gemm(family, problem, frame, epilogue, cpu)
    if takes_pairs(problem.arithmetic.number, cpu):
        problem = in_pairs(problem)
    scheme = choose_scheme(problem, cpu, 1 if invariant else MOST_CHAINS)
    writer = _Writer(problem, scheme, frame, epilogue)
    writer.write()
    packings: dict[int, Packing] = {}
    if problem.b_weight is not None:
        layout = panel_layout(problem.arithmetic)
        packings[problem.b_weight] = (
            Packing.of(f"conv_{layout}", panel=scheme.tile.panel, groups=1)
            if problem.b_is_filter
            else Packing.of(f"matmul_{layout}", panel=scheme.tile.panel, transposed=int(problem.b_transposed))
        )
    tiles = expression("ceildiv", problem.rows_extent, scheme.tile.rows)
    plan = frame.plan(
        family,
        task_count=product([*problem.batch_extents, tiles, scheme.panels]),
        scratch_bytes=writer.scratch_bytes,
        note=f"register tile {scheme.tile.rows}x{scheme.tile.panel}, blocks of {scheme.block_tiles} tiles"
        + (", A through scratch" if scheme.copy_a else "")
        + (", B packed at run time" if scheme.copy_b else ""),
    )
    return DeviceCode(plan.family, plan.text, plan.task_count, plan.scratch_bytes, packings, plan.note)


class _Writer:
    """Writes the task loop of one kernel."""

    def __init__(self, problem: RowGemm, scheme: _Scheme, frame: KernelFrame, epilogue: TileEpilogue) -> None:
        self.problem, self.scheme, self.frame, self.epilogue = problem, scheme, frame, epilogue
        self.text = frame.text
        tile, accumulator = scheme.tile, problem.accumulator
        bytes_ = element_bytes(accumulator)  # an element that is multiplied has as many

        def aligned(elements: int) -> int:
            return -(-elements * bytes_ // 64) * 64 // bytes_

        # Scratch: the tile's copy for heavy epilogues, then a block of A, then a panel of B.
        self.rolled = not epilogue.light or isinstance(problem.rows, Value)
        tile_elements = aligned(tile.rows * tile.panel) if self.rolled else 0
        block_elements = aligned(scheme.block_tiles * tile.rows * scheme.copy_a)
        panel_elements = aligned(problem.depth * tile.panel) if scheme.copy_b else 0
        scratch = Buffer(frame.scratch.pointer, accumulator)
        self.tile_scratch = scratch
        operand = problem.arithmetic.operand
        self.a_scratch = self.text.part(scratch, tile_elements, operand)
        self.b_scratch = self.text.part(scratch, tile_elements + block_elements, operand)
        self.scratch_bytes = (tile_elements + block_elements + panel_elements) * bytes_
        text, rows = self.text, problem.rows
        self.tiles = text.iceildiv(rows, tile.rows)
        # Even split: the first `larger` tiles have one row more than `size`. No rows, no tiles: then nothing runs.
        parts = self.tiles if isinstance(self.tiles, int) else text.imax(self.tiles, 1)
        self.size, self.larger = text.idiv(rows, parts), text.irem(rows, parts)

    def write(self) -> None:
        text, scheme, problem = self.text, self.scheme, self.problem
        begin, end = Value("%task_begin", "i64"), Value("%task_end", "i64")
        remembered = [text.i64(-1)] * (bool(scheme.copy_a) + scheme.copy_b)
        with text.span(begin, end, 1, remembered) as loop:
            carried = list(loop.carried)
            place = place_task(text, loop.index, self.tiles, scheme.panels, scheme.block_tiles, bool(problem.batch))
            batch, panel, tile = place.batch, place.panel, place.tile
            row = self._first_row(tile)
            indices = text.unravel(batch, problem.batch)
            a = text.part(problem.a, text.imul(text.dot(indices, problem.a_batch), problem.rows))
            column = text.imul(panel, scheme.tile.panel)
            a_row = problem.a_row
            a_depth = problem.a_depth
            if scheme.copy_a:
                key = text.as_value(text.iadd(text.imul(batch, 1 << 32), place.block))
                carried[0] = self._copy_a(key, carried[0], a, place.first_tile, place.block_tiles)
                local = text.isub(row, self._first_row(place.first_tile))
                a, a_row, a_depth = text.part(self.a_scratch, text.imul(local, scheme.copy_a)), scheme.copy_a, 1
            else:
                a = text.part(a, text.imul(row, a_row))
            b, b_stride, masks = self._panel(indices, batch, panel, column, carried)
            place_row = text.iadd(text.imul(batch, problem.rows), row)
            fetch = self._prefetches(a, a_row, a_depth, b, place)
            self._tile(tile, a, a_row, a_depth, b, b_stride, masks, place_row, column, fetch)
            if carried:
                text.yield_(carried)

    def _prefetches(self, a: Buffer, a_row: int, a_depth: int, b: Buffer, place: TaskPlace) -> list[Prefetch]:
        """What the next tiles need: short rows of A, which end before a hardware prefetcher has learnt them, and the
        block's share of the next panel of a B that comes from memory (each tile of the block fetches one part)."""
        text, problem, scheme = self.text, self.problem, self.scheme
        fetch: list[Prefetch] = []
        accumulator_bytes = element_bytes(problem.accumulator)
        if a_depth == 1 and problem.depth <= _SHORT_ROWS and isinstance(self.size, int) and self.tiles != 1:
            lines = -(-self.size * a_row * accumulator_bytes // 64)
            fetch.append(Prefetch(text.offset(a.pointer, self.size * a_row, a.element), lines, 3))
        panel_bytes = problem.depth * scheme.tile.panel * element_bytes(b.element)
        if problem.b_weight is not None and scheme.block_tiles > 1 and scheme.panels * panel_bytes > _LARGE_B:
            tiles, lines = place.block_tiles, text.iceildiv(panel_bytes // 64, place.block_tiles)
            if isinstance(tiles, Value) and isinstance(lines, Value):
                # A lone tile reads its panel as fast as memory gives it: fetching the next one would only compete.
                lines = text.select(text.compare("eq", tiles, text.i64(1)), text.i64(0), lines)
            start = text.offset(b.pointer, panel_bytes, "i8")
            distance = text.imul(place.in_block, text.imul(lines, 64))
            fetch.append(Prefetch(text.offset(start, distance, "i8"), lines, 2))
        return fetch

    def _first_row(self, tile: Index) -> Index:
        return tile_start(self.text, tile, self.size, self.larger)

    def _copy_a(self, key: Value, before: Value, a: Buffer, first_tile: Index, tiles: Index) -> Value:
        text, problem = self.text, self.problem
        with text.when(text.compare("ne", key, before)):
            first = self._first_row(first_tile)
            count = text.isub(self._first_row(text.iadd(first_tile, tiles)), first)
            source = text.part(a, text.imul(first, problem.a_row))
            if problem.arithmetic.numbers > 1 and a.element == problem.arithmetic.number:
                pair_rows(
                    text, source, problem.a_row, problem.a_depth, self.a_scratch, self.scheme.copy_a, count,
                    problem.numbers, self.scheme.tile.lanes,
                )  # fmt: skip
            else:
                copy_rows(
                    text, source, problem.a_row, problem.a_depth, self.a_scratch, self.scheme.copy_a, count,
                    problem.depth, self.scheme.tile.lanes,
                )  # fmt: skip
        return key

    def _panel(
        self, indices: Sequence[Index], batch: Index, panel: Index, column: Index, carried: list[Value]
    ) -> tuple[Buffer, int, list[Value | None]]:
        """The panel of B: its buffer, elements from one depth to the next, and masks for reading it."""
        text, problem, scheme = self.text, self.problem, self.scheme
        tile = scheme.tile
        none: list[Value | None] = [None] * tile.vectors
        if problem.b_weight is not None:
            # Packed matrices lie as the originals do, each padded to whole panels.
            padded = scheme.panels * tile.panel * problem.depth
            strides = [stride // (problem.numbers * problem.columns) * padded for stride in problem.b_batch]
            start = text.iadd(text.dot(indices, strides), text.imul(panel, tile.panel * problem.depth))
            return text.part(problem.b, start), tile.panel, none
        b = text.part(problem.b, text.dot(indices, problem.b_batch))
        if not scheme.copy_b:
            masks = self.masks(column)
            return text.part(b, column), problem.columns, masks
        key = text.as_value(text.iadd(text.imul(batch, scheme.panels), panel))
        with text.when(text.compare("ne", key, carried[-1])):
            copy_panel(text, b, problem.b_transposed, problem.numbers, problem.columns, column, tile, self.b_scratch)
        carried[-1] = key
        return self.b_scratch, tile.panel, none

    def masks(self, column: Index) -> list[Value | None]:
        """One mask per vector of the panel at ``column``; None where every panel is whole."""
        return column_masks(self.frame, self.problem.columns, self.scheme.tile, column)

    def _tile(
        self,
        tile: Index,
        a: Buffer,
        a_row: int,
        a_depth: int,
        b: Buffer,
        b_stride: int,
        b_masks: list[Value | None],
        row: Index,
        column: Index,
        prefetches: Sequence[Prefetch],
    ) -> None:
        """Sums and stores one tile, by its number of rows."""
        text, problem, shape = self.text, self.problem, self.scheme.tile
        masks = self.masks(column)
        count = text.iadd(self.size, 0)
        variants = list(range(1, shape.rows + 1))
        if isinstance(self.size, int) and isinstance(self.larger, int):
            variants = [self.size + 1] if self.larger else []
            variants += [self.size] if self.larger != self.tiles and self.size else []
        if self.larger != 0:
            larger = text.compare("slt", text.as_value(tile), text.as_value(self.larger))
            count = text.select(larger, text.as_value(text.iadd(self.size, 1)), text.as_value(self.size))

        def emit(rows: int) -> None:
            operands = self.epilogue.prefetches(TilePlace(row, column, masks, rows), shape.lanes)
            sums = accumulate(
                text, [r * a_row for r in range(rows)], shape, a.pointer, b.pointer,
                [Depth(problem.depth, a_depth, b_stride)], problem.arithmetic, b.element, b_masks,
                prefetches=[*prefetches, *operands],
            )  # fmt: skip
            if not self.rolled:
                self.epilogue.store_registers(sums, TilePlace(row, column, masks, rows))
                return
            for number, value in enumerate(sums):
                text.write(value, self.tile_scratch, number * shape.lanes)

        for rows in reversed(variants):
            if len(variants) == 1:
                emit(rows)
                continue
            with text.when(text.compare("eq", text.as_value(count), text.i64(rows))):
                emit(rows)
        if self.rolled:
            self.epilogue.store_rolled(self.tile_scratch, shape.lanes, TilePlace(row, column, masks, count))
