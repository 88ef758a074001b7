"""Depthwise convolution with a fused epilogue: one filter per channel, channels last, vectorized over channels.

Vocabulary
    chunk: the channels of one task, one or two vectors.
    run: output pixels of one line that are accumulated together in registers.
    border run: a run some of whose taps leave the input; which ones is known when the kernel is written.

Steps of a task, which is one output line of one chunk
    1. the range of kernel lines that lie inside the image, so that no line needs padding;
    2. for each run along the line: for each such kernel line, load every input pixel once and multiply it into all
       outputs that it touches (a 3x3 kernel with stride 1 uses each loaded vector three times);
    3. round, apply the epilogue, store.

Of bytes (``lk.integer_conv``) inputs and weights are widened when they are loaded and multiplied by ``multiply_words``.
Positions outside the input count as a number p: sums start with ``p * sum w``, and p is subtracted from each input, so
that here too nothing is done for taps outside.

Bytes moved: the input once from memory (neighbouring lines find it in L2), ``kernel * channels`` weights per line, the
output once; ``2 * kernel`` FLOPs per output element, so large images are bound by memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cpu.conv.problem import ConvProblem, read_conv
from lowerkit.targets.cpu.conv.window import Window
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.gemm.arithmetic import SINGLE_BYTES
from lowerkit.targets.cpu.gemm.byte_dot_products import multiply_words, widen_weight
from lowerkit.targets.cpu.gemm.problem import column_masks
from lowerkit.targets.cpu.gemm.tile_epilogue import TileEpilogue, TilePlace, make_tile_epilogue
from lowerkit.targets.cpu.gemm.tile_selection import Tile, even_split
from lowerkit.targets.cpu.gemm.weight_packing import Packing
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.text_builder import Value, element_bytes
from lowerkit.targets.plan import DeviceCode, Refusal, product
from lowerkit.targets.region_view import RegionView

__all__ = ["DepthwiseFamily", "Run", "split_line"]

_MOST_TAPS = 64


@dataclass(frozen=True)
class Run:
    """Consecutive runs of output pixels that share their code.

    Attributes:
        first: first pixel.
        pixels: pixels of a run.
        count: how many runs; more than one only where every tap lies inside.
    """

    first: int
    pixels: int
    count: int


def split_line(window: Window, most: int) -> list[Run]:
    """Splits a line of outputs evenly into runs of at most ``most`` pixels and groups those without border taps."""
    parts, size, larger = even_split(window.out, most)
    runs: list[Run] = []
    first = 0
    for part in range(parts):
        pixels = size + (part < larger)
        low = first * window.stride - window.low
        high = (first + pixels - 1) * window.stride - window.low + (window.kernel - 1) * window.dilation
        inside = low >= 0 and high < window.size
        last = runs[-1] if runs else None
        if inside and last is not None and last.pixels == pixels and _is_inside(window, last):
            runs[-1] = Run(last.first, pixels, last.count + 1)
        else:
            runs.append(Run(first, pixels, 1))
        first += pixels
    return runs


def _is_inside(window: Window, run: Run) -> bool:
    last = run.first + run.pixels * run.count - 1
    end = last * window.stride - window.low + (window.kernel - 1) * window.dilation
    return run.first * window.stride >= window.low and end < window.size


class DepthwiseFamily(KernelFamily):
    """Channels-last convolution with one filter per channel, in 1 to 3 dimensions."""

    name = "depthwise_conv"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Plans a region whose anchor is a convolution with as many groups as input and output channels."""
        frame = KernelFrame(region.buffer_types, region.invariant)
        frame.text.native_bf16, frame.text.vnni = cpu.avx512_bf16, cpu.avx512_vnni
        problem = read_conv(region, frame, single_bytes=True)
        if isinstance(problem, Refusal):
            return problem
        if problem.groups != problem.channels or problem.outputs != problem.channels or problem.channels == 1:
            channels = f"{problem.channels} -> {problem.outputs} channels"
            return Refusal(f"{problem.groups} groups for {channels}: not depthwise")
        if problem.width.kernel * problem.depth.kernel > _MOST_TAPS:
            return Refusal(f"a kernel of width {problem.width.kernel} would be unrolled")
        epilogue = make_tile_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        return _Writer(problem, frame, epilogue, cpu).plan(self.name)


class _Writer:
    """Writes one depthwise kernel."""

    def __init__(self, problem: ConvProblem, frame: KernelFrame, epilogue: TileEpilogue, cpu: CpuFeatures) -> None:
        self.problem, self.frame, self.epilogue = problem, frame, epilogue
        self.text = frame.text
        bytes_ = element_bytes(problem.accumulator)
        lanes = cpu.lanes(8 * bytes_)
        registers, taps = cpu.vector_registers, problem.width.kernel
        vectors = 2 if problem.channels % (2 * lanes) == 0 and 2 * taps + 10 <= registers else 1
        # Accumulators share the registers with one kernel line of weights and the input being multiplied.
        pixels = max(1, min((registers - vectors * (taps + 1)) // vectors, 16))
        self.tile = Tile(pixels, vectors, lanes)
        self.chunks = -(-problem.channels // self.tile.panel)
        self.runs = split_line(problem.width, pixels)
        self.integer = problem.arithmetic is SINGLE_BYTES
        inside = problem.depth.inside and problem.height.inside and problem.width.inside
        self.around = 0 if inside or not self.integer else problem.padding_value
        self.rolled = not epilogue.light
        self.scratch = Buffer(frame.scratch.pointer, problem.accumulator)
        self.scratch_bytes = pixels * self.tile.panel * bytes_ if self.rolled else 0

    def plan(self, family: str) -> DeviceCode:
        """Returns the finished kernel."""
        problem = self.problem
        self._write()
        plan = self.frame.plan(
            family,
            task_count=product([problem.images_extent, problem.depth.out, problem.height.out, self.chunks]),
            scratch_bytes=self.scratch_bytes,
            note=f"runs of {self.tile.rows} pixels x {self.tile.panel} channels",
        )
        packing = Packing.of("depthwise_channels")
        return DeviceCode(
            plan.family, plan.text, plan.task_count, plan.scratch_bytes, {problem.filter_operand: packing}, plan.note
        )

    def _write(self) -> None:
        text, problem = self.text, self.problem
        height, depth = problem.height, problem.depth
        with text.span(Value("%task_begin", "i64"), Value("%task_end", "i64")) as loop:
            chunk = text.irem(loop.index, self.chunks)
            line_number = text.idiv(loop.index, self.chunks)
            line = text.irem(line_number, height.out)
            plane_number = text.idiv(line_number, height.out)
            plane = text.irem(plane_number, depth.out)
            image = text.idiv(plane_number, depth.out)
            channel = text.imul(chunk, self.tile.panel)
            masks = column_masks(self.frame, problem.channels, self.tile, channel)
            size = depth.size * height.size * problem.width.size * problem.channels
            source = text.part(problem.input, text.iadd(text.imul(image, size), channel))
            weights = text.part(problem.filter, channel)
            first_row = text.imul(line_number, problem.width.out)
            start = self._start(weights, masks)
            for run in self.runs:
                if run.count == 1:
                    self._run(run.first, run, start, source, weights, plane, line, first_row, channel, masks)
                    continue
                with text.span(run.first, run.first + run.count * run.pixels, run.pixels) as along:
                    self._run(along.index, run, start, source, weights, plane, line, first_row, channel, masks)

    def _start(self, weights: Buffer, masks: Sequence[Value | None]) -> list[Value]:
        """What the sums of a pixel start with: zero, or what it is worth that all taps lie outside."""
        text, problem, tile = self.text, self.problem, self.tile
        zeros = [text.constant(0, problem.accumulator, tile.lanes)] * tile.vectors
        if not self.around:
            return zeros
        taps = problem.depth.kernel * problem.height.kernel * problem.width.kernel
        with text.span(0, taps, 1, zeros) as tap:
            here = text.part(weights, text.imul(tap.index, problem.channels))
            numbers = [
                text.cast("arith.extsi", text.read(here, v * tile.lanes, tile.lanes, mask), "i32")
                for v, mask in enumerate(masks)
            ]
            text.yield_([text.add(total, number) for total, number in zip(tap.carried, numbers, strict=True)])
        return [text.mul(total, text.like(self.around, total)) for total in tap.results]

    def _range(self, window: Window, output: Index) -> tuple[Index, Index]:
        """First and end of the taps that lie inside the input for one output position."""
        text = self.text
        if window.inside:
            return 0, window.kernel
        start = text.imul(output, window.stride)
        before = text.imax(text.isub(window.low, start), 0)
        reach = text.imax(text.isub(window.size + window.low, start), 0)
        first = text.iceildiv(before, window.dilation)
        end = text.imin(text.iceildiv(reach, window.dilation), window.kernel)
        return first, end

    def _run(
        self,
        first: Index,
        run: Run,
        start: Sequence[Value],
        source: Buffer,
        weights: Buffer,
        plane: Index,
        line: Index,
        first_row: Index,
        channel: Index,
        masks: Sequence[Value | None],
    ) -> None:
        """One run of pixels: all kernel planes and lines, then the epilogue."""
        text, problem, tile = self.text, self.problem, self.tile
        depth, height, width = problem.depth, problem.height, problem.width
        values = [*start] * run.pixels
        # Columns of the input, counted from that of the run's first output and first tap.
        column = text.isub(text.imul(first, width.stride), width.low)
        line_elements = width.size * problem.channels
        planes, lines = self._range(depth, plane), self._range(height, line)
        with text.span(planes[0], planes[1], 1, values) as plane_tap:
            with text.span(lines[0], lines[1], 1, plane_tap.carried) as line_tap:
                at_plane = text.iadd(text.imul(plane, depth.stride), text.imul(plane_tap.index, depth.dilation))
                at_line = text.iadd(text.imul(line, height.stride), text.imul(line_tap.index, height.dilation))
                at_line = text.isub(at_line, height.low)
                at = text.iadd(text.imul(text.isub(at_plane, depth.low), height.size), at_line)
                at = text.iadd(text.imul(at, line_elements), text.imul(column, problem.channels))
                tap = text.iadd(text.imul(plane_tap.index, height.kernel), line_tap.index)
                weight_at = text.imul(tap, width.kernel * problem.channels)
                here, taps = text.part(source, at), text.part(weights, weight_at)
                text.yield_(self._line(run, first, here, taps, line_tap.carried, masks))
            text.yield_(line_tap.results)
        row = text.iadd(first_row, first)
        place = TilePlace(row, channel, masks, run.pixels)
        if not self.rolled:
            self.epilogue.store_registers(plane_tap.results, place)
            return
        for number, value in enumerate(plane_tap.results):
            text.write(value, self.scratch, number * tile.lanes)
        self.epilogue.store_rolled(self.scratch, tile.lanes, place)

    def _line(
        self,
        run: Run,
        first: Index,
        source: Buffer,
        weights: Buffer,
        carried: Sequence[Value],
        masks: Sequence[Value | None],
    ) -> list[Value]:
        """One kernel line: each input pixel is loaded once and goes to every output that it touches."""
        text, problem, tile = self.text, self.problem, self.tile
        width, channels, lanes = problem.width, problem.channels, tile.lanes
        values = list(carried)

        def read(buffer: Buffer, at: int) -> list[Value]:
            return [text.read(buffer, at + v * lanes, lanes, mask) for v, mask in enumerate(masks)]

        taps = [[self._weight(value) for value in read(weights, tap * channels)] for tap in range(width.kernel)]
        uses: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(run.pixels):
            for tap in range(width.kernel):
                column = pixel * width.stride + tap * width.dilation
                if isinstance(first, int) and not 0 <= first * width.stride - width.low + column < width.size:
                    continue  # a border tap; runs in a loop have none
                uses.setdefault(column, []).append((pixel, tap))
        for column in sorted(uses):
            loaded = [self._input(value) for value in read(source, column * channels)]
            for pixel, tap in uses[column]:
                for v in range(tile.vectors):
                    at = pixel * tile.vectors + v
                    if self.integer:
                        values[at] = multiply_words(text, loaded[v], taps[tap][v], values[at])
                    else:
                        values[at] = text.fma(loaded[v], taps[tap][v], values[at])
        return values

    def _input(self, value: Value) -> Value:
        """An input as it is multiplied."""
        if not self.integer:
            return self.text.widen(value, self.problem.accumulator)
        wide = self.text.cast("arith.extui", value, "i32")
        return self.text.binary("arith.subi", wide, self.text.like(self.around, wide)) if self.around else wide

    def _weight(self, value: Value) -> Value:
        """A weight as it is multiplied."""
        return widen_weight(self.text, value) if self.integer else self.text.widen(value, self.problem.accumulator)
