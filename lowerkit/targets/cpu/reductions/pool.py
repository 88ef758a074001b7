"""Max and average pooling over 1 to 3 spatial dimensions.

Channels last: vectors run over the channels, up to four side by side; each output pixel walks the part of its window
that lies inside the input, so padding is never read or compared. Channels first: a plain path, vectors over the
innermost output dimension with strided loads where every window is inside, one scalar output at a time elsewhere.
A task is a row of output pixels. Bytes: the input about once (windows overlap in cache), the output once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.reductions.row_frame import anchor_operand
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.text_builder import Value, bit_width, is_float
from lowerkit.targets.cpu.vector.epilogue import Epilogue, make_epilogue
from lowerkit.targets.plan import DeviceCode, KernelExpr, Refusal, product
from lowerkit.targets.region_view import RegionView

__all__ = ["PoolFamily"]

_COLUMNS = 4


class PoolFamily(KernelFamily):
    """``lk.max_pool`` of any number type and ``lk.avg_pool`` of floats, in both layouts, with an epilogue."""

    name: ClassVar[str] = "pool"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not a pooling."""
        name = region.anchor.operation.name if region.anchor is not None else "no lk op"
        if region.anchor is None or name not in ("lk.max_pool", "lk.avg_pool"):
            return Refusal(f"the anchor is {name}")
        operation = region.anchor.operation
        frame = KernelFrame(region.buffer_types, region.invariant)
        source = anchor_operand(region, frame, 0)
        if isinstance(source, Refusal):
            return source
        epilogue = make_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        average = name == "lk.avg_pool"

        def integers(field: str) -> list[int]:
            return list(ir.DenseI64ArrayAttr(operation.attributes[field]))

        element = source.buffer.element
        compute = "f32" if element in ("f16", "bf16") else element
        rank = len(source.sizes)
        channels_last = ir.BoolAttr(operation.attributes["channels_last"]).value
        spatial = list(range(1, rank - 1)) if channels_last else list(range(2, rank))
        kernel = _Pool(
            frame=frame,
            source=source.buffer,
            epilogue=epilogue,
            sizes=list(source.sizes),
            result=[epilogue.sizes[dim] for dim in epilogue.dims],
            channel=rank - 1 if channels_last else 1,
            spatial=spatial,
            kernel=integers("kernel"),
            strides=integers("strides"),
            padding=integers("padding"),
            dilation=integers("dilation"),
            average=average,
            count_padding=average and ir.BoolAttr(operation.attributes["count_include_pad"]).value,
            divisor=ir.IntegerAttr(operation.attributes["divisor"]).value if average else 0,
            ceil_extra=integers("ceil_extra") if average else [0] * len(spatial),
            compute=compute,
            lanes=cpu.vector_bits // max(32, bit_width(compute)),
        )
        extents = _result_extents(region, frame, epilogue)
        if extents is None:
            return Refusal("the sizes of the pooled tensor are dynamic and not those of a result")
        tasks = kernel.channels_last_kernel(extents) if channels_last else kernel.channels_first_kernel(extents)
        layout = "channels last" if channels_last else "channels first"
        return frame.plan(self.name, tasks, note=f"{layout}, {kernel.lanes} lanes")


def _result_extents(region: RegionView, frame: KernelFrame, epilogue: Epilogue) -> list[KernelExpr] | None:
    """The sizes of the anchor's result as expressions."""
    assert region.anchor is not None
    type_ = ir.RankedTensorType(region.anchor.operation.results[0].type)
    if type_.has_static_shape:
        return list(type_.shape)
    for sizes, extents in zip(frame.sizes, frame.extents, strict=True):
        order = [epilogue.sizes[dim] for dim in epilogue.dims]
        if list(sizes) == order:
            return list(extents)
    return None


@dataclass
class _Pool:
    frame: KernelFrame
    source: Buffer
    epilogue: Epilogue
    sizes: list[Index]
    result: list[Index]
    channel: int
    spatial: list[int]
    kernel: list[int]
    strides: list[int]
    padding: list[int]
    dilation: list[int]
    average: bool
    count_padding: bool
    divisor: int
    ceil_extra: list[int]
    compute: str
    lanes: int

    # --- the two layouts --------------------------------------------------------------------------------------

    def channels_last_kernel(self, extents: Sequence[KernelExpr]) -> KernelExpr:
        text, lanes = self.frame.text, self.lanes
        outer = [0, *self.spatial[:-1]]
        last = self.spatial[-1]
        channels = self.sizes[self.channel]
        with self.frame.tasks() as task:
            place = text.unravel(task, [self.result[dim] for dim in outer])
            with text.span(0, self.result[last]) as pixel:
                point = [*place, pixel.index]
                bounds, divisor = self._window(point[1:])

                def group(start: Index, number: int, mask: Value | None) -> None:
                    values = self._walk(
                        bounds,
                        [self._neutral(lanes)] * number,
                        lambda at: [
                            self._read(point[0], at, text.iadd(start, vector * lanes), mask) for vector in range(number)
                        ],
                    )
                    for vector, value in enumerate(values):
                        finished = self._finish(value, divisor)
                        at = text.iadd(start, vector * lanes)
                        self.epilogue.store(finished, [*point, at], self.channel, mask)

                self._channel_groups(channels, group)
        return product([extents[dim] for dim in outer])

    def _channel_groups(self, channels: Index, group: Callable[[Index, int, Value | None], None]) -> None:
        """Walks the channels in groups of ``_COLUMNS`` vectors, then single ones."""
        text, lanes = self.frame.text, self.lanes
        width = lanes * _COLUMNS
        whole = text.imul(text.idiv(channels, width), width)
        if whole != 0:
            with text.span(0, whole, width) as loop:
                group(loop.index, _COLUMNS, None)

        def single(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            group(text.iadd(whole, index), 1, mask)
            return carried

        text.strip(text.isub(channels, whole), lanes, single, guard_tail=True)

    def channels_first_kernel(self, extents: Sequence[KernelExpr]) -> KernelExpr:
        text = self.frame.text
        outer = [0, 1, *self.spatial[:-1]]
        last = self.spatial[-1]
        with self.frame.tasks() as task:
            place = text.unravel(task, [self.result[dim] for dim in outer])
            begin, end = self._inside()

            def scalar(low: Index, high: Index) -> None:
                with text.span(low, high) as loop:
                    self._first_vector(place, loop.index, 1, None)

            def vector(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                self._first_vector(place, text.iadd(begin, index), self.lanes, mask)
                return carried

            scalar(0, begin)
            text.strip(text.isub(end, begin), self.lanes, vector, guard_tail=True)
            scalar(end, self.result[last])
        return product([extents[dim] for dim in outer])

    def _inside(self) -> tuple[Index, Index]:
        """The output positions of the last dimension whose windows lie inside the input."""
        text = self.frame.text
        low, stride = self.padding[-2], self.strides[-1]
        reach = self.dilation[-1] * (self.kernel[-1] - 1)
        size, count = self.sizes[self.spatial[-1]], self.result[self.spatial[-1]]
        begin = text.imin(-(-low // stride), count)
        # o * stride - low + reach <= size - 1
        room = text.imax(text.iadd(size, low - reach - 1), -stride)
        end = text.imin(count, text.idiv(text.iadd(room, stride), stride))
        return begin, text.imax(begin, end)

    def _first_vector(self, place: Sequence[Index], start: Index, lanes: int, mask: Value | None) -> None:
        """``lanes`` neighbouring outputs; more than one only where their windows are inside the input."""
        text = self.frame.text
        batch, channel, *rest = place
        bounds, divisor = self._window([*rest, start])
        plane = text.iadd(text.imul(batch, self.sizes[1]), channel)

        def read(at: Sequence[Index]) -> list[Value]:
            linear = plane
            for dim, coordinate in zip(self.spatial, at, strict=True):
                linear = text.iadd(text.imul(linear, self.sizes[dim]), coordinate)
            value = text.strided_read(self.source, linear, self.strides[-1], lanes, mask)
            return [self._widen(value)]

        value = self._walk(bounds, [self._neutral(lanes)], read)[0]
        self.epilogue.store(self._finish(value, divisor), [*place, start], len(place), mask)

    # --- windows ----------------------------------------------------------------------------------------------

    def _window(self, outputs: Sequence[Index]) -> tuple[list[tuple[Index, Index, Index]], Value | None]:
        """Returns for each dimension ``(first input position, window steps that are inside: from, to)``, and the
        divisor of the mean as a scalar."""
        text = self.frame.text
        bounds: list[tuple[Index, Index, Index]] = []
        count: Index = 1
        for number, output in enumerate(outputs):
            low, high = self.padding[2 * number], self.padding[2 * number + 1]
            size, dilation = self.sizes[self.spatial[number]], self.dilation[number]
            start = text.isub(text.imul(output, self.strides[number]), low)
            inside = low == 0 and self._never_leaves(number)
            first: Index = 0
            if low:
                first = text.idiv(text.imax(text.isub(dilation - 1, start), 0), dilation)
                first = text.imin(first, self.kernel[number])
            last: Index = self.kernel[number]
            if not inside:
                room = text.imax(text.isub(size, start), 0)
                last = text.imin(last, text.iceildiv(room, dilation))
            bounds.append((start, first, last))
            if self.count_padding:
                # Positions inside the input or its padding; what ceil mode added at the end does not count.
                limit = text.iadd(size, high - self.ceil_extra[number])
                here = text.imin(self.kernel[number], text.iceildiv(text.imax(text.isub(limit, start), 0), dilation))
                count = text.imul(count, here)
            else:
                count = text.imul(count, text.imax(text.isub(last, first), 0))
        if not self.average:
            return bounds, None
        divisor = self.divisor or count
        return bounds, text.cast("arith.sitofp", text.as_value(divisor), self.compute)

    def _never_leaves(self, number: int) -> bool:
        size, count = self.sizes[self.spatial[number]], self.result[self.spatial[number]]
        if not isinstance(size, int) or not isinstance(count, int):
            return False
        reach = (count - 1) * self.strides[number] - self.padding[2 * number]
        return reach + self.dilation[number] * (self.kernel[number] - 1) < size

    def _walk(
        self,
        bounds: Sequence[tuple[Index, Index, Index]],
        values: list[Value],
        read: Callable[[Sequence[Index]], list[Value]],
        at: Sequence[Index] = (),
    ) -> list[Value]:
        """Combines what ``read`` gives over the window's positions inside the input, one dimension per level."""
        text = self.frame.text
        if len(at) == len(bounds):
            kind = "add" if self.average else "max"
            return [text.combine(kind, old, new) for old, new in zip(values, read(at), strict=True)]
        start, first, last = bounds[len(at)]
        dilation = self.dilation[len(at)]
        if isinstance(first, int) and isinstance(last, int) and last - first <= 8:
            for step in range(first, last):
                values = self._walk(bounds, values, read, [*at, text.iadd(start, step * dilation)])
            return values
        with text.span(first, last, 1, values) as loop:
            position = text.iadd(start, text.imul(loop.index, dilation))
            text.yield_(self._walk(bounds, loop.carried, read, [*at, position]))
        return loop.results

    # --- elements ---------------------------------------------------------------------------------------------

    def _read(self, batch: Index, at: Sequence[Index], channel: Index, mask: Value | None) -> Value:
        text = self.frame.text
        linear = batch
        for dim, coordinate in zip(self.spatial, at, strict=True):
            linear = text.iadd(text.imul(linear, self.sizes[dim]), coordinate)
        linear = text.iadd(text.imul(linear, self.sizes[self.channel]), channel)
        return self._widen(text.read(self.source, linear, self.lanes, mask))

    def _widen(self, value: Value) -> Value:
        return self.frame.text.widen(value, self.compute) if is_float(self.compute) else value

    def _neutral(self, lanes: int) -> Value:
        text = self.frame.text
        if self.average:
            return text.constant(0, self.compute, lanes)
        if is_float(self.compute):
            return text.constant(-math.inf, self.compute, lanes)
        return text.constant(-(2 ** (bit_width(self.compute) - 1)), self.compute, lanes)

    def _finish(self, value: Value, divisor: Value | None) -> Value:
        text = self.frame.text
        if divisor is not None:
            value = text.div(value, text.broadcast(divisor, value.lanes))
        return text.narrow(value, self.source.element) if is_float(self.compute) else value
