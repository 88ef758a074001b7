"""Softmax and its logarithm along any axis.

Along the last axis a task is a run of rows; a row is read for its maximum, read again from L1 for exp(x - max) and
their sum, and scaled on the way out. Along another axis every lane owns one column and the same three passes run
down the columns. Bytes: input and output once; the exponentials of a row (f32) stay in scratch.

exp(x - max) needs no overflow branch, and results below 2^-126 of the maximum are 0. A NaN or +inf makes its row NaN
(inf - inf), and so does a row of -inf, as the formula has it.
"""

from __future__ import annotations

import math
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.reductions.row_frame import Rows, anchor_operand, rows_of_anchor
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.run_reduction import fold_values, sum_strip
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.vector.epilogue import Epilogue, make_epilogue
from lowerkit.targets.cpu.vector.math import exp_normal, log
from lowerkit.targets.plan import DeviceCode, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

__all__ = ["SoftmaxFamily"]


class SoftmaxFamily(KernelFamily):
    """``lk.softmax`` of f32, f16 and bf16, with a fused epilogue."""

    name: ClassVar[str] = "softmax"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not a softmax in f32 arithmetic."""
        if region.anchor is None or region.anchor.operation.name != "lk.softmax":
            return Refusal("the anchor is not lk.softmax")
        operation = region.anchor.operation
        type_ = ir.RankedTensorType(operation.operands[0].type)
        if str(type_.element_type) == "f64":
            return Refusal("exp in f64 has no vector form")
        axis = ir.IntegerAttr(operation.attributes["axis"]).value
        logarithm = ir.BoolAttr(operation.attributes["log"]).value
        if axis == type_.rank - 1:
            rows = rows_of_anchor(region, cpu, 1)
            return rows if isinstance(rows, Refusal) else self._along_rows(rows, logarithm)
        return self._along_columns(region, cpu, type_, axis, logarithm)

    def _along_rows(self, rows: Rows, logarithm: bool) -> DeviceCode:
        frame, lanes, length = rows.frame, rows.lanes, rows.length
        text = frame.text
        zero = text.constant(0.0, "f32", lanes)

        def emit(start: Index, row: Index) -> None:
            peak = text.broadcast(_highest(text, rows, start), lanes)

            def exponential(index: Index, mask: Value | None) -> Value:
                weight = exp_normal(text, text.sub(rows.load(start, index, mask), peak))
                if mask is not None:
                    weight = text.select(mask, weight, zero)
                if not logarithm:
                    text.write(weight, frame.scratch, index)
                return weight

            total = text.broadcast(text.fold_lanes("add", sum_strip(text, length, lanes, zero, exponential)), lanes)
            if logarithm:
                shift = log(text, total)
            else:
                shift = text.div(text.constant(1.0, "f32", lanes), total)

            def finish(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                if logarithm:
                    value = text.sub(text.sub(rows.load(start, index, mask), peak), shift)
                else:
                    value = text.mul(text.read(frame.scratch, index, lanes), shift)
                rows.store(value, row, index, mask)
                return carried

            text.strip(length, lanes, finish, unroll=2)

        tasks = rows.each_row(emit)
        padded = expression("mul", expression("add", rows.length_extent, lanes), 4)
        return frame.plan(self.name, tasks, 0 if logarithm else padded, note=f"rows of {length}, {lanes} lanes")

    def _along_columns(
        self, region: RegionView, cpu: CpuFeatures, type_: ir.RankedTensorType, axis: int, logarithm: bool
    ) -> DeviceCode | Refusal:
        frame = KernelFrame(region.buffer_types, region.invariant)
        source = anchor_operand(region, frame, 0)
        if isinstance(source, Refusal):
            return source
        epilogue = make_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        groups = [list(range(axis)), [axis], list(range(axis + 1, type_.rank))]
        merged = epilogue.collapsed(groups, 2)
        if isinstance(merged, Refusal):
            return merged
        text, lanes = frame.text, cpu.lanes(32)
        outer, count, inner = (text.iproduct([source.sizes[dim] for dim in group]) for group in groups)
        extents = [product([frame.extents[source.operand][dim] for dim in group]) for group in groups]
        # As many columns as keep the task's cache lines whole: 4 vectors.
        width = 4 * lanes
        with frame.tasks() as task:
            blocks = text.iceildiv(inner, width)
            first = text.imul(text.irem(task, blocks), width)
            row = text.idiv(task, blocks)
            columns = (
                width if isinstance(inner, int) and inner % width == 0 else text.imin(width, text.isub(inner, first))
            )
            start = text.imul(row, text.imul(count, inner))

            def column(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                at = text.iadd(first, index)
                self._column(frame, source.buffer, merged, (row, at), start, (count, inner), lanes, mask, logarithm)
                return carried

            text.strip(columns, lanes, column, guard_tail=True)
        del outer
        tasks = expression("mul", extents[0], expression("ceildiv", extents[2], width))
        scratch = 0 if logarithm else expression("mul", extents[1], lanes * 4)
        return frame.plan(self.name, tasks, scratch, note=f"columns, {lanes} lanes")

    def _column(
        self,
        frame: KernelFrame,
        source: Buffer,
        epilogue: Epilogue,
        place: tuple[Index, Index],
        start: Index,
        sizes: tuple[Index, Index],
        lanes: int,
        mask: Value | None,
        logarithm: bool,
    ) -> None:
        """One vector of columns."""
        text = frame.text
        (row, at), (count, inner) = place, sizes

        def load(step: Index) -> Value:
            where = text.iadd(text.iadd(start, at), text.imul(step, inner))
            return text.widen(text.read(source, where, lanes, mask))

        with text.span(0, count, 1, [text.constant(-math.inf, "f32", lanes)]) as loop:
            value = load(loop.index)
            text.yield_([text.select(text.compare("ogt", value, loop.carried[0]), value, loop.carried[0])])
        peak = loop.results[0]
        with text.span(0, count, 1, [text.constant(0.0, "f32", lanes)]) as loop:
            weight = exp_normal(text, text.sub(load(loop.index), peak))
            if not logarithm:
                text.write(weight, frame.scratch, text.imul(loop.index, lanes))
            text.yield_([text.add(loop.carried[0], weight)])
        total = loop.results[0]
        shift = log(text, total) if logarithm else text.div(text.constant(1.0, "f32", lanes), total)
        with text.span(0, count) as loop:
            if logarithm:
                value = text.sub(text.sub(load(loop.index), peak), shift)
            else:
                value = text.mul(text.read(frame.scratch, text.imul(loop.index, lanes), lanes), shift)
            epilogue.store(text.narrow(value, source.element), [row, loop.index, at], 2, mask)


def _highest(text: KernelText, rows: Rows, start: Index) -> Value:
    """The maximum of a row. NaN may be dropped: its own exponential brings it back into the sum."""
    lowest = text.constant(-math.inf, "f32", rows.lanes)
    count = 4 if not isinstance(rows.length, int) else max(1, min(4, -(-rows.length // rows.lanes)))

    def step(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
        value = rows.load(start, index, mask)
        if mask is not None:
            value = text.select(mask, value, lowest)
        higher = text.select(text.compare("ogt", value, carried[0]), value, carried[0])
        return [*carried[1:], higher]

    peaks = text.strip(rows.length, rows.lanes, step, [lowest] * count, unroll=count)
    # A NaN lane never entered, so the tree over lanes may use the plain maximum.
    return text.fold_lanes("max", fold_values(text, "max", peaks))
