"""Depthwise convolutions: one input channel for each output channel, tap by tap, in registers.

There is nothing to share between channels, so tensor cores have nothing to do: the time is that of memory. Each value
is loaded once for each tap, from L1 but for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lowerkit.targets.cuda.families.windows.conv_problem import Conv, read_conv
from lowerkit.targets.cuda.families.windows.sliding import scaled, total
from lowerkit.targets.cuda.families.windows.window_tile import WindowTile, open_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import TYPES, converted
from lowerkit.targets.cuda.triton.tensors import Frame, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter
from lowerkit.targets.plan import KernelExpr, Refusal, expression
from lowerkit.targets.region_view import RegionView


class DepthwiseFamily(KernelFamily):
    """``lk.conv`` of floats and ``lk.integer_conv``, of groups of one input channel."""

    name: ClassVar[str] = "depthwise"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        frame = Frame(region)
        read = read_conv(region, frame, depthwise=True)
        if isinstance(read, Refusal):
            return read
        conv, epilogue = read
        writer = KernelWriter()
        tile = open_tile(writer, frame, conv.slide, conv.outputs)
        sums = _write_sums(writer, conv, tile)
        epilogue.write(writer, writer.let(converted(sums, conv.sums, conv.result), "value"), tile.axes)
        source = writer.source(len(frame.buffers), frame.dims)
        kernel = TritonKernel(self.name, source, pointer_types(frame), frame.dims, tile.warps, 1)
        sizes = [buffer.bytes for buffer in frame.buffers]
        operands = len(region.operands)
        used = {conv.slide.x.pointer, conv.filter.pointer} | epilogue.read_operands()
        read_bytes: KernelExpr = 0
        for number in sorted(used):
            read_bytes = expression("add", read_bytes, sizes[number])
        written: KernelExpr = 0
        for size in sizes[operands:]:
            written = expression("add", written, size)
        return one_kernel(
            kernel, sizes, operands, tile.blocks, note=tile.note,
            flops=conv.flops, read=read_bytes, written=written, packings=conv.packings,
        )  # fmt: skip


def _write_sums(writer: KernelWriter, conv: Conv, tile: WindowTile) -> str:
    sums = writer.fresh("sums")
    writer.line(f"{sums} = tl.zeros(({tile.shape[0]}, {tile.shape[1]}), {TYPES[conv.sums]})")
    slide = conv.slide
    # Of channels that are second, that of a row that is not there is one that is.
    channels_mask = tile.axes[1].mask if slide.channels_last else None
    filter_at = f"p{conv.filter.pointer} + ({tile.channel}"
    filter_at += ")" if conv.output_stride == 1 else f" * {conv.output_stride})"
    filter_at = writer.let(filter_at, "w")

    def tap(flat: str, _: Sequence[str], place: str, mask: str | None) -> None:
        guard = f", mask={mask}, other={conv.around}" if mask is not None else ""
        x = writer.let(f"tl.load(p{slide.x.pointer} + ({place}){guard})", "x")
        w_guard = f", mask={channels_mask}, other=0" if channels_mask is not None else ""
        w = writer.let(f"tl.load({total([filter_at, scaled(flat, conv.tap_stride)])}{w_guard})", "w")
        if conv.sums == "i32":
            number = f"({x}.to(tl.int32) & 255)" if conv.unsigned else f"{x}.to(tl.int32)"
            writer.line(f"{sums} = {sums} + {number} * {w}.to(tl.int32)")
        else:
            writer.line(f"{sums} = tl.fma({_wide(x, conv)}, {_wide(w, conv)} + tl.zeros_like({sums}), {sums})")

    tile.for_taps(writer, tap)
    return sums


def _wide(text: str, conv: Conv) -> str:
    return converted(text, conv.slide.x.element, "f32")
