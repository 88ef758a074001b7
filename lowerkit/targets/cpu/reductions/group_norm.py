"""Group norm (and instance norm) in both layouts; a task is one group of one sample, or as many as share a vector.

Channels first, a group is one contiguous run; scale and bias are constant along each channel of it. Channels last, a
group is a short run of channels in every pixel: vectors run over those, and the sums of 16 pixels at a time go through
the cascade of ``text/run_reduction.py``. Groups of fewer channels than a vector has lanes (one, in instance norm) lie
side by side in its lanes, each with moments of its own. The input comes from memory once and from cache twice, where a
group fits there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.reductions.norm_moments import Moments, centered_moments
from lowerkit.targets.cpu.reductions.row_frame import anchor_operand
from lowerkit.targets.cpu.reductions.row_norm import Affine, affine_operands
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.region_values import Located
from lowerkit.targets.cpu.text.run_reduction import cascade_sum, sum_strips
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.vector.epilogue import Epilogue, make_epilogue
from lowerkit.targets.plan import DeviceCode, Refusal, expression
from lowerkit.targets.region_view import RegionView

__all__ = ["GroupNormFamily"]

_PIXELS = 16

Terms = Callable[[Value, Value | None], Sequence[Value]]


class GroupNormFamily(KernelFamily):
    """``lk.group_norm`` of f32, f16, bf16 and f64, with a fused epilogue."""

    name: ClassVar[str] = "group_norm"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not a group norm."""
        if region.anchor is None or region.anchor.operation.name != "lk.group_norm":
            return Refusal("the anchor is not lk.group_norm")
        operation = region.anchor.operation
        frame = KernelFrame(region.buffer_types, region.invariant)
        source = anchor_operand(region, frame, 0)
        if isinstance(source, Refusal):
            return source
        rank = len(source.sizes)
        channels_last = ir.BoolAttr(operation.attributes["channels_last"]).value
        groups = ir.IntegerAttr(operation.attributes["groups"]).value
        spatial = list(range(1, rank - 1)) if channels_last else list(range(2, rank))
        channel = rank - 1 if channels_last else 1
        channels = source.sizes[channel]
        if not isinstance(channels, int):
            return Refusal("the number of channels is dynamic")
        compute = "f64" if source.buffer.element == "f64" else "f32"
        affine = affine_operands(region, frame, compute)
        if isinstance(affine, Refusal):
            return affine
        epilogue = make_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        merged = epilogue.collapsed([[0], spatial, [channel]] if channels_last else [[0], [channel], spatial], 2)
        if isinstance(merged, Refusal):
            return merged
        kernel = _GroupNorm(
            frame=frame,
            source=source.buffer,
            epilogue=merged,
            affine=affine,
            groups=groups,
            members=channels // groups,
            pixels=frame.text.iproduct([source.sizes[dim] for dim in spatial]),
            compute=compute,
            lanes=cpu.lanes(64 if compute == "f64" else 32),
            epsilon=ir.FloatAttr(operation.attributes["epsilon"]).value,
        )
        kernel.emit(channels_last)
        per_sample = -(-channels // kernel.lanes) if channels_last and kernel.shares_vectors else groups
        tasks = expression("mul", frame.extents[source.operand][0], per_sample)
        layout = "channels last" if channels_last else "channels first"
        return frame.plan(self.name, tasks, note=f"{layout}, {kernel.members} channels a group, {kernel.lanes} lanes")


@dataclass
class _GroupNorm:
    frame: KernelFrame
    source: Buffer
    epilogue: Epilogue
    affine: Affine
    groups: int
    members: int
    pixels: Index
    compute: str
    lanes: int
    epsilon: float

    @property
    def shares_vectors(self) -> bool:
        """Whether whole groups fit side by side into a vector, channels last."""
        return self.members < self.lanes and self.lanes % self.members == 0

    def emit(self, channels_last: bool) -> None:
        text = self.frame.text
        if channels_last and self.shares_vectors:
            self._side_by_side()
            return
        with self.frame.tasks() as task:
            sample, group = text.unravel(task, [0, self.groups])
            first = text.imul(group, self.members)
            if channels_last:
                base = text.iadd(text.imul(sample, text.imul(self.pixels, self.groups * self.members)), first)
                self._channels_last(sample, first, base)
            else:
                base = text.imul(task, text.imul(self.pixels, self.members))
                self._channels_first(sample, first, base)

    def _load(self, at: Index, mask: Value | None) -> Value:
        text = self.frame.text
        return text.widen(text.read(self.source, at, self.lanes, mask), self.compute)

    def _moments(self, walk: Callable[[Sequence[Value], Terms], list[Value]]) -> Moments:
        count = self.frame.text.imul(self.pixels, self.members)
        return centered_moments(self.frame.text, walk, count, self.compute, self.lanes, self.epsilon)

    def _channels_first(self, sample: Index, first: Index, base: Index) -> None:
        text, lanes = self.frame.text, self.lanes
        count = text.imul(self.pixels, self.members)

        def walk(zeros: Sequence[Value], terms: Terms) -> list[Value]:
            def at(index: Index, mask: Value | None) -> Sequence[Value]:
                return terms(self._load(text.iadd(base, index), mask), mask)

            return sum_strips(text, count, lanes, zeros, at)

        moments = self._moments(walk)
        with text.span(0, self.members) as loop:
            channel = text.iadd(first, loop.index)
            scale, bias = (self._splat(operand, channel) for operand in self.affine)
            start = text.iadd(base, text.imul(loop.index, self.pixels))

            def finish(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                value = moments.normalize(text, self._load(text.iadd(start, index), mask))
                self._store(value, scale, bias, [sample, channel, index], mask)
                return carried

            text.strip(self.pixels, lanes, finish, unroll=2)

    def _channels_last(self, sample: Index, first: Index, base: Index) -> None:
        text, lanes = self.frame.text, self.lanes
        stride = self.groups * self.members

        def walk(zeros: Sequence[Value], terms: Terms) -> list[Value]:
            def block(start: Value) -> Sequence[Value]:
                with text.span(start, text.imin(self.pixels, text.iadd(start, _PIXELS)), 1, zeros) as loop:
                    pixel = text.iadd(base, text.imul(loop.index, stride))

                    def step(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                        values = terms(self._load(text.iadd(pixel, index), mask), mask)
                        return [text.add(old, value) for old, value in zip(carried, values, strict=True)]

                    text.yield_(text.strip(self.members, lanes, step, loop.carried))
                return loop.results

            return [text.add(total, lost) for total, lost in cascade_sum(text, self.pixels, _PIXELS, zeros, block)]

        moments = self._moments(walk)
        with text.span(0, self.pixels) as loop:
            pixel = text.iadd(base, text.imul(loop.index, stride))

            def finish(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                channel = text.iadd(first, index)
                scale, bias = (self._vector(operand, channel, mask) for operand in self.affine)
                value = moments.normalize(text, self._load(text.iadd(pixel, index), mask))
                self._store(value, scale, bias, [sample, loop.index, channel], mask)
                return carried

            text.strip(self.members, lanes, finish)

    def _side_by_side(self) -> None:
        """Channels last, a task is one vector of channels, which holds several groups."""
        text, lanes, channels = self.frame.text, self.lanes, self.groups * self.members
        chunks = -(-channels // lanes)
        with self.frame.tasks() as task:
            sample, chunk = text.unravel(task, [0, chunks])
            first = text.imul(chunk, lanes)
            base = text.iadd(text.imul(sample, text.imul(self.pixels, channels)), first)
            mask = None if channels % lanes == 0 else text.mask(text.as_value(text.isub(channels, first)), lanes)

            def walk(zeros: Sequence[Value], terms: Terms) -> list[Value]:
                def block(start: Value) -> Sequence[Value]:
                    with text.span(start, text.imin(self.pixels, text.iadd(start, _PIXELS)), 1, zeros) as loop:
                        values = terms(self._load(text.iadd(base, text.imul(loop.index, channels)), mask), mask)
                        text.yield_([text.add(old, value) for old, value in zip(loop.carried, values, strict=True)])
                    return loop.results

                return [text.add(total, lost) for total, lost in cascade_sum(text, self.pixels, _PIXELS, zeros, block)]

            count = text.imul(self.pixels, self.members)
            moments = centered_moments(text, walk, count, self.compute, lanes, self.epsilon, together=self.members)
            scale, bias = (self._vector(operand, first, mask) for operand in self.affine)
            with text.span(0, self.pixels) as loop:
                value = self._load(text.iadd(base, text.imul(loop.index, channels)), mask)
                self._store(moments.normalize(text, value), scale, bias, [sample, loop.index, first], mask)

    def _splat(self, operand: Located | None, channel: Index) -> Value | None:
        if operand is None:
            return None
        text = self.frame.text
        return text.broadcast(text.widen(text.read(operand.buffer, channel), self.compute), self.lanes)

    def _vector(self, operand: Located | None, channel: Index, mask: Value | None) -> Value | None:
        if operand is None:
            return None
        text = self.frame.text
        return text.widen(text.read(operand.buffer, channel, self.lanes, mask), self.compute)

    def _store(
        self, value: Value, scale: Value | None, bias: Value | None, place: list[Index], mask: Value | None
    ) -> None:
        text = self.frame.text
        if scale is not None:
            value = text.mul(value, scale)
        if bias is not None:
            value = text.add(value, bias)
        self.epilogue.store(text.narrow(value, self.source.element), place, 2, mask)
