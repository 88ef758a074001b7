"""Transposed convolutions of groups of one input channel: tap by tap, in registers.

A position of the result goes through all taps, of which one in as many as the stride has a position of the input; the
others load nothing. There is nothing to share between channels: the time is that of memory.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product as combinations
from typing import ClassVar

from lowerkit.targets.cuda.families.windows.sliding import scaled, split_tap, total
from lowerkit.targets.cuda.families.windows.transposed_problem import Transposed, read_transposed
from lowerkit.targets.cuda.families.windows.window_tile import UNROLLED, WindowTile, open_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import converted
from lowerkit.targets.cuda.triton.tensors import Frame, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import Refusal
from lowerkit.targets.plan import total as sum_of
from lowerkit.targets.region_view import RegionView


class TransposedDepthwiseFamily(KernelFamily):
    """``lk.conv_transpose`` of floats, of groups of one input channel."""

    name: ClassVar[str] = "depthwise_transpose"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        frame = Frame(region)
        read = read_transposed(region, frame, depthwise=True)
        if isinstance(read, Refusal):
            return read
        problem, epilogue = read
        writer = KernelWriter()
        # The starts of the tile are what a position of the result is beyond the padding; positions of the input follow
        # from them tap by tap, so the tile is told that windows do not move over the input.
        windows = tuple(replace(window, stride=1, low=-window.low, step=0) for window in problem.slide.windows)
        tile = open_tile(writer, frame, replace(problem.slide, windows=windows), problem.outputs)
        sums = _write_sums(writer, problem, tile)
        value = writer.let(converted(sums, "f32", problem.slide.x.element), "value")
        epilogue.write(writer, value, tile.axes)
        source = writer.source(len(frame.buffers), frame.dims)
        kernel = TritonKernel(self.name, source, pointer_types(frame), frame.dims, tile.warps, 1)
        used = {problem.slide.x.pointer, problem.filter.pointer} | epilogue.read_operands()
        launch = PlannedLaunch(
            kernel,
            range(len(frame.buffers)),
            tile.blocks,
            problem.flops,
            sum_of([frame.buffers[number].bytes for number in sorted(used)]),
            sum_of([each.bytes for each in frame.results]),
        )
        return planned_region(frame, [launch], note=tile.note, packings=problem.packings)


def _write_sums(writer: KernelWriter, problem: Transposed, tile: WindowTile) -> str:
    """Writes the sum over all taps of each element of the tile; returns its name."""
    slide = problem.slide
    sums = writer.fresh("sums")
    writer.line(f"{sums} = tl.zeros(({tile.shape[0]}, {tile.shape[1]}), tl.float32)")
    # Of channels that are second, that of a row that is not there is one that is.
    channels_mask = tile.axes[1].mask if slide.channels_last else None
    filter_at = _filter(writer, problem, tile)

    def tap(flat: str, numbers: list[str]) -> None:
        masks = [] if tile.mask is None else [tile.mask]
        places = [tile.origin]
        for window, start, number in zip(slide.windows, tile.starts, numbers, strict=True):
            back = scaled(number, window.dilation)
            at = writer.let(start if back == "0" else f"{start} - {back}", "at")
            masks.append(writer.let(f"({at} >= 0) & ({at} < {render(window.size)} * {window.stride})", "there"))
            place = at
            if window.stride > 1:
                masks.append(writer.let(f"{at} % {window.stride} == 0", "meets"))
                place = writer.let(f"{at} // {window.stride}", "place")
            places.append(scaled(place, window.step))
        guard = f", mask={' & '.join(f'({each})' for each in masks)}, other=0"
        x = writer.let(f"tl.load(p{slide.x.pointer} + ({total(places)}){guard})", "x")
        w_guard = f", mask={channels_mask}, other=0" if channels_mask is not None else ""
        w = writer.let(f"tl.load({total([filter_at, scaled(flat, problem.tap_stride)])}{w_guard})", "w")
        element = slide.x.element
        wide = f"{converted(w, element, 'f32')} + tl.zeros_like({sums})"
        writer.line(f"{sums} = tl.fma({converted(x, element, 'f32')}, {wide}, {sums})")

    if slide.taps > UNROLLED:
        with writer.block(f"for tap in range(0, {slide.taps}):"):
            tap("tap", split_tap(writer, slide, "tap"))
    else:
        for flat, numbers in enumerate(combinations(*(range(window.kernel) for window in slide.windows))):
            tap(str(flat), [str(number) for number in numbers])
    return sums


def _filter(writer: KernelWriter, problem: Transposed, tile: WindowTile) -> str:
    """Returns where the first tap of each output channel lies."""
    channel, outputs = tile.channel, problem.outputs
    if problem.group_stride == outputs * problem.output_stride:
        at = scaled(f"({channel})", problem.output_stride)
    else:
        group, rest = writer.let(f"{channel} // {outputs}", "group"), writer.let(f"{channel} % {outputs}", "rest")
        at = total([scaled(group, problem.group_stride), scaled(rest, problem.output_stride)])
    return writer.let(f"p{problem.filter.pointer} + {at}", "w")
