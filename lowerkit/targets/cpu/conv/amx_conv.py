"""bf16 channels-last convolution on AMX tiles.

Vocabulary as in ``conv`` and ``amx_tile``. A tile is two A tiles of ``height`` output pixels, at most 16, each along
one line; they lie beside each other on a line (28 pixels: 14 + 14) or on two lines (14 pixels: a pair of lines). The
height is the same everywhere: where it does not divide the line, the last tile computes pixels behind the end, which
are read from scratch and never stored.

Per step of 32 (tap, channel) elements: four tile loads (4 KiB) for four products.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cpu.conv.problem import ConvProblem
from lowerkit.targets.cpu.conv.window import PaddedLines
from lowerkit.targets.cpu.gemm.amx_tile import STEP, TILE_COLUMNS, AmxTiles
from lowerkit.targets.cpu.gemm.microkernel import Depth, Prefetch
from lowerkit.targets.cpu.gemm.problem import column_masks
from lowerkit.targets.cpu.gemm.task_order import place_task
from lowerkit.targets.cpu.gemm.tile_epilogue import TileEpilogue, TilePlace
from lowerkit.targets.cpu.gemm.tile_selection import Tile, evict_each_other, l2_bytes
from lowerkit.targets.cpu.gemm.weight_packing import Packing
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import DeviceCode, product

__all__ = ["plan_amx_conv", "takes_amx_conv"]

_PANEL = 2 * TILE_COLUMNS
_LARGE_FILTER = 1 << 19


@dataclass(frozen=True)
class _Scheme:
    """How the output is cut.

    Attributes:
        height: pixels of an A tile.
        along: A tiles of a tile along a line: 2, or 1 when the second one is on the next line.
        columns: tiles along a line.
        line_groups: tiles along the height.
        block_groups: line groups of a block.
        padded: layout of the input copy, None to read the input where it lies.
    """

    height: int
    along: int
    columns: int
    line_groups: int
    block_groups: int
    padded: PaddedLines | None

    @property
    def lines(self) -> int:
        """Lines of a tile."""
        return 3 - self.along


def takes_amx_conv(problem: ConvProblem, cpu: CpuFeatures, for_all_groups: bool = False) -> bool:
    """True when AMX tiles apply: bf16 and runs of whole steps along channels (or along a line of taps).

    With ``for_all_groups`` it hangs on the channels of a group alone: taps follow each other where there is one group.
    """
    run = problem.group_channels if for_all_groups else _run(problem, problem.channels)[1]
    return cpu.amx and problem.arithmetic.number == "bf16" and run % STEP == 0


def _run(problem: ConvProblem, pitch: int) -> tuple[int, int]:
    """(taps along the width, contiguous elements of each), taps merged where channels follow each other."""
    width, channels = problem.width, problem.group_channels
    if width.kernel == 1 or width.dilation * pitch == channels:
        return 1, width.kernel * channels
    return width.kernel, channels


def _choose(problem: ConvProblem, cpu: CpuFeatures) -> _Scheme:
    depth, height, width = problem.depth, problem.height, problem.width
    parts = -(-width.out // 16)
    pixels = -(-width.out // parts)
    along = 2 if parts % 2 == 0 else 1
    columns = parts // along
    lines = 3 - along
    line_groups = -(-height.out // lines)
    # Pixels or lines behind the end are computed too: they must be readable.
    ragged = width.out % pixels != 0 or height.out % lines != 0
    pitch = problem.channels
    copied = ragged or not (depth.inside and height.inside and width.inside)
    if evict_each_other(16, width.stride * pitch * 2):
        copied = True
        if evict_each_other(16, width.copy_stride * pitch * 2) and _run(problem, pitch + STEP)[1] % STEP == 0:
            pitch += STEP
    line_bytes = 2 * depth.kernel * pitch * ((width.out - 1) * width.copy_stride + width.kernel)
    fitting = l2_bytes(cpu) // 4 // line_bytes - (height.kernel - 1) * height.dilation
    block = max(1, min(line_groups, fitting // (height.copy_stride * lines)))
    block = -(-line_groups // -(-line_groups // block))
    padded = None
    if copied:
        count = (block * lines - 1) * height.copy_stride + (height.kernel - 1) * height.dilation + 1
        padded = PaddedLines(depth, height, width, problem.channels, pitch, count)
    return _Scheme(pixels, along, columns, line_groups, block, padded)


def plan_amx_conv(
    family: str, problem: ConvProblem, frame: KernelFrame, epilogue: TileEpilogue, cpu: CpuFeatures
) -> DeviceCode:
    """Writes the kernel of a convolution that :func:`takes_amx_conv` accepts."""
    scheme = _choose(problem, cpu)
    panels = -(-problem.group_outputs // _PANEL)
    tile_bytes = 4 * 2 * scheme.height * _PANEL
    _write(problem, scheme, frame, epilogue, panels)
    # Pixels behind the last line are read: one tile's worth.
    slack = 0 if scheme.padded is None else 2 * 16 * problem.width.copy_stride * scheme.padded.pitch
    copy = 0 if scheme.padded is None else 2 * scheme.padded.elements + slack
    plan = frame.plan(
        family,
        task_count=product(
            [
                problem.images_extent,
                problem.depth.out,
                scheme.line_groups * scheme.columns,
                problem.groups * panels,
            ]
        ),
        scratch_bytes=tile_bytes + copy,
        note=f"AMX bf16, tile {scheme.lines}x{scheme.along * scheme.height} pixels x {_PANEL} channels"
        + (", padded input lines in scratch" if scheme.padded is not None else ""),
    )
    packing = Packing.of("conv_tiles", groups=problem.groups)
    return DeviceCode(
        plan.family, plan.text, plan.task_count, plan.scratch_bytes, {problem.filter_operand: packing}, plan.note
    )


def _write(problem: ConvProblem, scheme: _Scheme, frame: KernelFrame, epilogue: TileEpilogue, panels: int) -> None:
    text, padded = frame.text, scheme.padded
    depth, height, width = problem.depth, problem.height, problem.width
    sums = Buffer(frame.scratch.pointer, "f32")
    copy = Buffer(text.offset(frame.scratch.pointer, 4 * 2 * scheme.height * _PANEL, "i8"), "bf16")
    tiles, block_tiles = scheme.line_groups * scheme.columns, scheme.block_groups * scheme.columns
    remembered = [text.i64(-1)] if padded is not None else []
    with text.span(Value("%task_begin", "i64"), Value("%task_end", "i64"), 1, remembered) as loop:
        place = place_task(text, loop.index, tiles, problem.groups * panels, block_tiles, True)
        image = text.idiv(place.batch, depth.out)
        out_plane = text.irem(place.batch, depth.out) if depth.out > 1 else 0
        line = text.imul(text.idiv(place.tile, scheme.columns), scheme.lines)
        pixel = text.imul(text.irem(place.tile, scheme.columns), scheme.along * scheme.height)
        size = depth.size * height.size * width.size * problem.channels
        source = text.part(problem.input, text.imul(image, size))
        group = text.idiv(place.panel, panels) if problem.groups > 1 else 0
        panel = text.irem(place.panel, panels) if problem.groups > 1 else place.panel
        key = text.as_value(text.iadd(text.imul(place.batch, 1 << 32), place.block))
        if padded is not None:
            first = text.imul(text.idiv(place.first_tile, scheme.columns), scheme.lines)
            with text.when(text.compare("ne", key, loop.carried[0])):
                count = text.imin(text.isub(height.out, first), scheme.block_groups * scheme.lines)
                padded.fill(text, source, copy, out_plane, first, count, 32)
            at = text.imul(text.imul(text.isub(line, first), height.copy_stride), padded.line)
            a = text.part(copy, text.iadd(at, text.imul(pixel, width.copy_stride * padded.pitch)))
            line_distance, pixel_distance = height.copy_stride * padded.line, width.copy_stride * padded.pitch
            plane_tap, line_tap = padded.plane, height.dilation * padded.line
            pitch = padded.pitch
        else:
            at = text.iadd(text.imul(text.imul(out_plane, depth.stride), height.size), text.imul(line, height.stride))
            at = text.iadd(text.imul(at, width.size), text.imul(pixel, width.stride))
            a = text.part(source, text.imul(at, problem.channels))
            elements = width.size * problem.channels
            line_distance, pixel_distance = height.stride * elements, width.stride * problem.channels
            plane_tap, line_tap = depth.dilation * height.size * elements, height.dilation * elements
            pitch = problem.channels
        a = text.part(a, text.imul(group, problem.group_channels))
        taps, run = _run(problem, pitch)
        steps = depth.kernel * height.kernel * taps * (run // STEP)
        b = text.part(problem.filter, text.imul(place.panel, steps * STEP * _PANEL))
        loops = [
            Depth(depth.kernel, plane_tap, 0),
            Depth(height.kernel, line_tap, 0),
            Depth(taps, width.dilation * pitch, 0),
            Depth(run // STEP, STEP, 0),
        ]
        second = scheme.height * pixel_distance if scheme.along == 2 else line_distance
        pointers = [a.pointer, text.offset(a.pointer, second, "bf16")]
        fetch: list[Prefetch] = []
        panel_bytes = 2 * steps * STEP * _PANEL
        if block_tiles > 1 and panel_bytes * problem.groups * panels > _LARGE_FILTER:
            share = -(-panel_bytes // 64 // block_tiles)
            start = text.offset(b.pointer, panel_bytes, "i8")
            fetch = [Prefetch(text.offset(start, text.imul(place.in_block, share * 64), "i8"), share, 2)]
        AmxTiles(text, scheme.height).accumulate(pointers, pixel_distance, b.pointer, loops, sums, fetch)
        column = text.imul(panel, _PANEL)
        masks = column_masks(frame, problem.group_outputs, Tile(2 * scheme.height, 2, TILE_COLUMNS), column)
        channel = text.iadd(text.imul(group, problem.group_outputs), column)
        row = text.iadd(text.imul(text.iadd(text.imul(place.batch, height.out), line), width.out), pixel)
        per_line: Index = scheme.along * scheme.height
        if width.out % per_line:
            per_line = text.imin(text.isub(width.out, pixel), per_line)
        lines: Index = scheme.lines
        if height.out % lines:
            lines = text.imin(text.isub(height.out, line), lines)
        epilogue.store_rolled(
            sums,
            TILE_COLUMNS,
            TilePlace(row, channel, masks, per_line, lines, width.out, scheme.along * scheme.height),
        )
        if remembered:
            text.yield_([key])
