"""Pools: the largest element or the mean of each window, tap by tap, in registers; the time is that of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.windows.sliding import Slide, Window, read_slide
from lowerkit.targets.cuda.families.windows.window_tile import WindowTile, open_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import NARROW, TYPES, converted
from lowerkit.targets.cuda.triton.tensors import Frame, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

_FLOATS = ("f32", "f16", "bf16")
_INTEGERS = ("i8", "i16", "i32", "i64")


class PoolFamily(KernelFamily):
    """``lk.max_pool`` of floats and integers and ``lk.avg_pool`` of floats, channels last or second."""

    name: ClassVar[str] = "pool"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        view = region.anchor
        if view is None or view.operation.name not in ("lk.max_pool", "lk.avg_pool"):
            return Refusal("the anchor is no pool")
        anchor = view.operation
        element = str(ir.RankedTensorType(anchor.results[0].type).element_type)
        largest = anchor.name == "lk.max_pool"
        taken = (*_FLOATS, *_INTEGERS) if largest else _FLOATS
        if element not in taken:
            return Refusal(f"elements of {element}: one of {', '.join(taken)} is taken")
        frame = Frame(region)
        parameters: dict[str, Any] = view.parameters()  # type: ignore[attr-defined]
        slide = read_slide(frame, anchor, parameters, parameters["kernel"])
        if isinstance(slide, Refusal):
            return slide
        epilogue = read_epilogue(region, frame, anchor)
        if isinstance(epilogue, Refusal):
            return epilogue
        writer = KernelWriter()
        tile = open_tile(writer, frame, slide)
        made = _write_largest(writer, tile) if largest else _write_mean(writer, tile, parameters)
        epilogue.write(writer, made, tile.axes)
        source = writer.source(len(frame.buffers), frame.dims)
        kernel = TritonKernel(self.name, source, pointer_types(frame), frame.dims, tile.warps, 1)
        sizes = [buffer.bytes for buffer in frame.buffers]
        operands = len(region.operands)
        read: KernelExpr = 0
        for number in sorted({slide.x.pointer} | epilogue.read_operands()):
            read = expression("add", read, sizes[number])
        written: KernelExpr = 0
        for size in sizes[operands:]:
            written = expression("add", written, size)
        count = slide.taps if largest else slide.taps + 1
        return one_kernel(
            kernel, sizes, operands, tile.blocks, note=tile.note,
            flops=product([*slide.pixel_sizes, slide.channels, count]), read=read, written=written,
        )  # fmt: skip


def _write_largest(writer: KernelWriter, tile: WindowTile) -> str:
    element = tile.slide.x.element
    kept = "f32" if element in NARROW else element
    least = 'float("-inf")' if element in _FLOATS else str(-(1 << (int(element[1:]) - 1)))
    best = writer.fresh("best")
    writer.line(f"{best} = tl.full(({tile.shape[0]}, {tile.shape[1]}), {least}, {TYPES[kept]})")
    number = ", propagate_nan=tl.PropagateNan.ALL" if element in _FLOATS else ""

    def tap(_: str, __: Sequence[str], place: str, mask: str | None) -> None:
        guard = f", mask={mask}, other={least}" if mask is not None else ""
        x = writer.let(f"tl.load(p{tile.slide.x.pointer} + ({place}){guard})", "x")
        writer.line(f"{best} = tl.maximum({best}, {converted(x, element, kept)}{number})")

    tile.for_taps(writer, tap)
    return writer.let(converted(best, kept, element), "value")


def _write_mean(writer: KernelWriter, tile: WindowTile, parameters: dict[str, Any]) -> str:
    element = tile.slide.x.element
    sums = writer.fresh("sums")
    writer.line(f"{sums} = tl.zeros(({tile.shape[0]}, {tile.shape[1]}), tl.float32)")

    def tap(_: str, __: Sequence[str], place: str, mask: str | None) -> None:
        guard = f", mask={mask}, other=0" if mask is not None else ""
        x = writer.let(f"tl.load(p{tile.slide.x.pointer} + ({place}){guard})", "x")
        writer.line(f"{sums} = {sums} + {converted(x, element, 'f32')}")

    tile.for_taps(writer, tap)
    count = _count(writer, tile.slide, tile.starts, parameters)
    mean = f"tl.div_rn({sums}, {count}.to(tl.float32) + tl.zeros_like({sums}))"
    return writer.let(converted(mean, "f32", element), "value")


def _count(writer: KernelWriter, slide: Slide, starts: Sequence[str], parameters: dict[str, Any]) -> str:
    """Returns what sums are divided by: a number, or how many taps count for each pixel."""
    if parameters["divisor"]:
        return writer.let(f"tl.full([], {parameters['divisor']}, tl.int32)", "count")
    counts: list[str] = []
    for number, (window, start) in enumerate(zip(slide.windows, starts, strict=True)):
        first, end = "0", window.size
        if parameters["count_include_pad"]:
            high = parameters["padding"][2 * number + 1] - parameters["ceil_extra"][number]
            first, end = str(-window.low), expression("add", window.size, high)
        if _all_count(window, first, end):
            counts.append(str(window.kernel))
        else:
            below, above = (_taps_before(writer, window, start, bound) for bound in (first, render(end)))
            counts.append(writer.let(f"{above} - {below}", "count"))
    return writer.let(f"tl.maximum(tl.full([], 1, tl.int32) * {' * '.join(counts)}, 1)", "count")


def _all_count(window: Window, first: str, end: KernelExpr) -> bool:
    if not isinstance(end, int) or not isinstance(window.out, int):
        return False
    last = (window.out - 1) * window.stride - window.low + (window.kernel - 1) * window.dilation
    return -window.low >= int(first) and last < end


def _taps_before(writer: KernelWriter, window: Window, start: str, bound: str) -> str:
    """How many taps of a pixel lie in front of a position."""
    distance = f"tl.maximum({bound} - {start}, 0)"
    steps = distance if window.dilation == 1 else f"({distance} + {window.dilation - 1}) // {window.dilation}"
    return writer.let(f"tl.minimum({steps}, {window.kernel})", "before")
