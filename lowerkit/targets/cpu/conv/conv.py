"""Convolution with a fused epilogue: channels-last ``lk.conv`` as register tiles over packed filters (BRGEMM).

``lk.integer_conv`` is the same over elements of four bytes, bf16 over pairs where the CPU multiplies them
(:mod:`problem`).

Vocabulary
    line: one row of output pixels; tile: output pixels of one line (or several whole short lines) x a filter panel.
    panel: output channels of one register tile; the filter lies as [group, panel, kernel..., channel, panel width].
    task: one tile; ordered (image, block of lines, group and panel, tile).

Steps of a task
    1. when the block changed: copy its input lines with their zero padding to scratch (``window.py``), unless the
       window never leaves the input;
    2. sum over kernel taps and channels in registers. Taps along the width and channels are one run when they are
       contiguous in memory (no dilation, one group), so a 3-channel stem still has runs of 21;
    3. round, apply the epilogue, store.

A 1x1 kernel with stride 1 is a matrix product over all pixels and goes to ``matmul``. FLOPs per task:
``2 * pixels * panel * K`` with ``K = kernel * channels``; bytes: the panel (``4 * K * panel``) from L2 per tile.
"""

from __future__ import annotations

from lowerkit.targets.cpu.conv.amx_conv import plan_amx_conv, takes_amx_conv
from lowerkit.targets.cpu.conv.problem import ConvProblem, in_pairs, read_conv
from lowerkit.targets.cpu.conv.tiling import ConvScheme, choose_scheme, split_sizes
from lowerkit.targets.cpu.conv.window import PaddedLines
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.gemm.arithmetic import takes_pairs
from lowerkit.targets.cpu.gemm.microkernel import Depth, Prefetch, accumulate
from lowerkit.targets.cpu.gemm.problem import RowGemm, column_masks
from lowerkit.targets.cpu.gemm.row_gemm import plan_row_gemm
from lowerkit.targets.cpu.gemm.task_order import TaskPlace, place_task, tile_start
from lowerkit.targets.cpu.gemm.tile_epilogue import TileEpilogue, TilePlace, make_tile_epilogue
from lowerkit.targets.cpu.gemm.weight_packing import Packing, panel_layout
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.text_builder import Value, element_bytes
from lowerkit.targets.plan import DeviceCode, Refusal, product
from lowerkit.targets.region_view import RegionView

__all__ = ["ConvFamily"]

_LARGE_FILTER = 1 << 19


class ConvFamily(KernelFamily):
    """Register-tiled channels-last convolution of any kernel, stride, dilation and grouping in 1 to 3 dimensions."""

    name = "conv"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Plans a region whose anchor is a convolution with a constant filter; only the batch may be dynamic."""
        frame = KernelFrame(region.buffer_types, region.invariant)
        frame.text.native_bf16, frame.text.vnni = cpu.avx512_bf16 and not region.invariant, cpu.avx512_vnni
        problem = read_conv(region, frame)
        if isinstance(problem, Refusal):
            return problem
        epilogue = make_tile_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        if problem.is_product:
            pixels = problem.depth.out * problem.height.out * problem.width.out
            gemm = RowGemm(
                (), (), frame.text.imul(problem.images, pixels), product([problem.images_extent, pixels]),
                problem.outputs, problem.channels * problem.arithmetic.numbers, problem.input, problem.filter, (), (),
                problem.pixel, 1, True,
                problem.filter_operand, problem.arithmetic, b_is_filter=True,
            )  # fmt: skip
            return plan_row_gemm(self.name, gemm, frame, epilogue, cpu)
        if takes_amx_conv(problem, cpu, for_all_groups=region.invariant):
            return plan_amx_conv(self.name, problem, frame, epilogue, cpu)
        # Beside other groups, one of an odd number of channels has no pairs.
        if takes_pairs(problem.arithmetic.number, cpu) and not (region.invariant and problem.group_channels % 2):
            problem = in_pairs(problem)
        return _Writer(problem, choose_scheme(problem, cpu), frame, epilogue).plan(self.name)


class _Writer:
    """Writes one convolution kernel."""

    def __init__(self, problem: ConvProblem, scheme: ConvScheme, frame: KernelFrame, epilogue: TileEpilogue) -> None:
        self.problem, self.scheme, self.frame, self.epilogue = problem, scheme, frame, epilogue
        self.text = frame.text
        bytes_ = element_bytes(problem.accumulator)
        self.rolled = not epilogue.light
        tile_elements = -(-scheme.tile.rows * scheme.tile.panel * bytes_ // 64) * 64 // bytes_ if self.rolled else 0
        scratch = Buffer(frame.scratch.pointer, problem.accumulator)
        self.tile_scratch = scratch
        self.lines_scratch = self.text.part(scratch, tile_elements, problem.arithmetic.operand)
        copy = scheme.padded.elements if scheme.padded is not None else 0
        self.scratch_bytes = (tile_elements + copy) * bytes_

    def plan(self, family: str) -> DeviceCode:
        """Returns the finished kernel."""
        problem, scheme = self.problem, self.scheme
        tiles = scheme.line_groups[0] * scheme.columns[0]
        panels = problem.groups * scheme.panels
        self._write(tiles, panels)
        pixels = scheme.columns[1] + bool(scheme.columns[2])
        lines = scheme.line_groups[1] + bool(scheme.line_groups[2])
        plan = self.frame.plan(
            family,
            task_count=product([problem.images_extent, problem.depth.out, tiles, panels]),
            scratch_bytes=self.scratch_bytes,
            note=f"register tile {lines}x{pixels} pixels x {scheme.tile.panel} channels, "
            f"blocks of {scheme.block_groups} tile rows"
            + (", padded input lines in scratch" if scheme.padded is not None else ""),
        )
        kind = f"conv_{panel_layout(problem.arithmetic)}"
        packing = Packing.of(kind, panel=scheme.tile.panel, groups=problem.groups)
        return DeviceCode(
            plan.family, plan.text, plan.task_count, plan.scratch_bytes, {problem.filter_operand: packing}, plan.note
        )

    def _write(self, tiles: int, panels: int) -> None:
        text, scheme, problem = self.text, self.scheme, self.problem
        padded = scheme.padded
        block_tiles = scheme.block_groups * scheme.columns[0]
        remembered = [text.i64(-1)] if padded is not None else []
        with text.span(Value("%task_begin", "i64"), Value("%task_end", "i64"), 1, remembered) as loop:
            place = place_task(text, loop.index, tiles, panels, block_tiles, True)
            image = text.idiv(place.batch, problem.depth.out)
            out_plane = text.irem(place.batch, problem.depth.out) if problem.depth.out > 1 else 0
            line, columns = self._line(place.tile), scheme.columns
            column_tile = text.irem(place.tile, columns[0]) if columns[0] > 1 else 0
            pixel = tile_start(text, column_tile, columns[1], columns[2])
            size = problem.depth.size * problem.height.size * problem.width.size * problem.pixel
            image_buffer = text.part(problem.input, text.imul(image, size))
            if padded is not None:
                key = text.as_value(text.iadd(text.imul(place.batch, 1 << 32), place.block))
                self._copy(padded, key, loop.carried[0], image_buffer, out_plane, place)
                first = self._line(place.first_tile)
                at = text.imul(text.imul(text.isub(line, first), padded.height.copy_stride), padded.line)
                at = text.iadd(at, text.imul(pixel, padded.width.copy_stride * padded.pitch))
                a = text.part(self.lines_scratch, at)
            else:
                depth, height, width = problem.depth, problem.height, problem.width
                at = text.iadd(
                    text.imul(text.imul(out_plane, depth.stride), height.size), text.imul(line, height.stride)
                )
                at = text.iadd(text.imul(at, width.size), text.imul(pixel, width.stride))
                a = text.part(image_buffer, text.imul(at, problem.channels))
            self._panel(place, a, line, pixel, column_tile)
            if remembered:
                text.yield_([key])  # type: ignore[possibly-undefined]

    def _line(self, tile: Index) -> Index:
        """First output line of a tile."""
        text, (_, size, larger) = self.text, self.scheme.line_groups
        return tile_start(text, text.idiv(tile, self.scheme.columns[0]), size, larger)

    def _copy(
        self, padded: PaddedLines, key: Value, before: Value, image: Buffer, out_plane: Index, place: TaskPlace
    ) -> None:
        text = self.text
        with text.when(text.compare("ne", key, before)):
            first = self._line(place.first_tile)
            end = self._line(text.iadd(place.first_tile, place.block_tiles))
            lanes = self.scheme.tile.lanes
            padded.fill(text, image, self.lines_scratch, out_plane, first, text.isub(end, first), lanes)

    def _panel(self, place: TaskPlace, a: Buffer, line: Index, pixel: Index, column_tile: Index) -> None:
        """Finds filter panel, result place and loops of a tile, and emits it for each of its possible sizes."""
        text, problem, scheme = self.text, self.problem, self.scheme
        tile = scheme.tile
        group = text.idiv(place.panel, scheme.panels) if problem.groups > 1 else 0
        panel = text.irem(place.panel, scheme.panels) if problem.groups > 1 else place.panel
        column = text.imul(panel, tile.panel)
        taps = problem.depth.kernel * problem.height.kernel * problem.width.kernel
        panel_elements = taps * problem.group_channels * tile.panel
        b = text.part(problem.filter, text.imul(place.panel, panel_elements))
        a = text.part(a, text.imul(group, problem.group_channels))
        masks = column_masks(self.frame, problem.group_outputs, tile, column)
        channel = text.iadd(text.imul(group, problem.group_outputs), column)
        line_number = text.iadd(text.imul(place.batch, problem.height.out), line)
        row = text.iadd(text.imul(line_number, problem.width.out), pixel)
        fetch = self._prefetches(place, b, panel_elements)
        variants = [(h, w) for _, h in split_sizes(scheme.line_groups) for _, w in split_sizes(scheme.columns)]
        for lines, pixels in variants:
            if len(variants) == 1:
                self._emit(lines, pixels, a, b, TilePlace(row, channel, masks, pixels, lines, problem.width.out), fetch)
                continue
            larger = scheme.line_groups[2] if len(split_sizes(scheme.line_groups)) > 1 else scheme.columns[2]
            at = text.idiv(place.tile, scheme.columns[0]) if len(split_sizes(scheme.line_groups)) > 1 else column_tile
            is_larger = (lines, pixels) == variants[0]
            with text.when(text.compare("slt" if is_larger else "sge", text.as_value(at), text.i64(larger))):
                self._emit(lines, pixels, a, b, TilePlace(row, channel, masks, pixels, lines, problem.width.out), fetch)

    def _prefetches(self, place: TaskPlace, b: Buffer, panel_elements: int) -> list[Prefetch]:
        """Each tile of a block fetches its share of the next panel of a large filter."""
        text, scheme = self.text, self.scheme
        block_tiles = scheme.block_groups * scheme.columns[0]
        panel_bytes = panel_elements * element_bytes(b.element)
        if block_tiles == 1 or panel_bytes * scheme.panels * self.problem.groups <= _LARGE_FILTER:
            return []
        lines = -(-panel_bytes // 64 // block_tiles)
        start = text.offset(b.pointer, panel_bytes, "i8")
        return [Prefetch(text.offset(start, text.imul(place.in_block, lines * 64), "i8"), lines, 2)]

    def _strides(self) -> tuple[int, int, int, int, int]:
        """Elements of the input as tiles read it, to the next output line and pixel, and to the next plane, line and
        pixel tap."""
        problem, padded = self.problem, self.scheme.padded
        depth, height, width = problem.depth, problem.height, problem.width
        if padded is not None:
            return (
                height.copy_stride * padded.line, width.copy_stride * padded.pitch, padded.plane,
                height.dilation * padded.line, width.dilation * padded.pitch,
            )  # fmt: skip
        line = width.size * problem.channels
        return (
            height.stride * line, width.stride * problem.channels, depth.dilation * height.size * line,
            height.dilation * line, width.dilation * problem.channels,
        )  # fmt: skip

    def _emit(
        self, lines: int, pixels: int, a: Buffer, b: Buffer, place: TilePlace, prefetches: list[Prefetch]
    ) -> None:
        text, problem, tile = self.text, self.problem, self.scheme.tile
        line, pixel, plane_tap, line_tap, pixel_tap = self._strides()
        run, width = problem.group_channels, problem.width.kernel
        inner = [Depth(width, pixel_tap, run * tile.panel), Depth(run, 1, tile.panel)]
        if width == 1 or (pixel_tap == run and not text.invariant):
            inner = [Depth(width * run, 1, tile.panel)]
        row_weights = width * run * tile.panel
        loops = [
            Depth(problem.depth.kernel, plane_tap, problem.height.kernel * row_weights),
            Depth(problem.height.kernel, line_tap, row_weights),
            *inner,
        ]
        prefetches = [*prefetches, *self.epilogue.prefetches(place, tile.lanes)]
        sums = accumulate(
            text, [y * line + x * pixel for y in range(lines) for x in range(pixels)], tile, a.pointer, b.pointer,
            loops, problem.arithmetic, b.element, prefetches=prefetches,
        )  # fmt: skip
        if not self.rolled:
            self.epilogue.store_registers(sums, place)
            return
        for number, value in enumerate(sums):
            text.write(value, self.tile_scratch, number * tile.lanes)
        self.epilogue.store_rolled(self.tile_scratch, tile.lanes, place)
