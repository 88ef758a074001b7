"""``lk.cumulative``: running sums, products and extremes along one axis.

Every lane owns one column where something lies inside the axis; along the innermost axis a row is walked element by
element. A task is a row, or a block of columns. The running value is carried in f32 for 16-bit floats, sums and
products of f32 in f64, as in eager, and rounded at each output. Bytes: the input and the result once.
"""

from __future__ import annotations

import math
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.reductions.row_frame import anchor_operand
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Index
from lowerkit.targets.cpu.text.text_builder import Value, bit_width, is_float
from lowerkit.targets.cpu.vector.epilogue import make_epilogue
from lowerkit.targets.plan import DeviceCode, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

__all__ = ["CumulativeFamily"]

_COMBINERS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


class CumulativeFamily(KernelFamily):
    """``lk.cumulative`` of numbers along any axis, exclusive and reversed too, with an epilogue."""

    name: ClassVar[str] = "cumulative"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not a scan."""
        if region.anchor is None or region.anchor.operation.name != "lk.cumulative":
            return Refusal("the anchor is not lk.cumulative")
        operation = region.anchor.operation
        frame = KernelFrame(region.buffer_types, region.invariant)
        text = frame.text
        source = anchor_operand(region, frame, 0)
        if isinstance(source, Refusal):
            return source
        epilogue = make_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        axis = ir.IntegerAttr(operation.attributes["axis"]).value
        groups = [list(range(axis)), [axis], list(range(axis + 1, len(source.sizes)))]
        merged = epilogue.collapsed(groups, 2)
        if isinstance(merged, Refusal):
            return merged
        kind = _COMBINERS[ir.StringAttr(operation.attributes["kind"]).value]
        exclusive = ir.BoolAttr(operation.attributes["exclusive"]).value
        reverse = ir.BoolAttr(operation.attributes["reverse"]).value
        element = source.buffer.element
        compute = "f32" if element in ("f16", "bf16") else element
        compute = "f64" if element == "f32" and kind in ("add", "mul") else compute
        count, inner = (text.iproduct([source.sizes[dim] for dim in group]) for group in groups[1:])
        extents = [product([frame.extents[source.operand][dim] for dim in group]) for group in groups]
        lanes = 1 if inner == 1 else cpu.vector_bits // max(32, bit_width(compute))
        width = 4 * lanes
        with frame.tasks() as task:
            blocks = text.iceildiv(inner, width)
            first = text.imul(text.irem(task, blocks), width)
            row = text.idiv(task, blocks)

            def column(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                at = text.iadd(first, index)
                start = text.constant(_neutral(kind, compute), compute, lanes)
                with text.span(0, count, 1, [start]) as loop:
                    step = text.isub(text.isub(count, 1), loop.index) if reverse else loop.index
                    linear = text.iadd(text.imul(text.iadd(text.imul(row, count), step), inner), at)
                    value = text.read(source.buffer, linear, lanes, mask)
                    value = text.widen(value, compute) if is_float(compute) else value
                    total = text.combine(kind, loop.carried[0], value)
                    shown = loop.carried[0] if exclusive else total
                    shown = text.narrow(shown, element) if is_float(compute) else shown
                    merged.store(shown, [row, step, at], 2 if lanes > 1 else 1, mask)
                    text.yield_([total])
                return carried

            text.strip(text.imin(width, text.isub(inner, first)), lanes, column, guard_tail=True)
        tasks = expression("mul", extents[0], expression("ceildiv", extents[2], width))
        return frame.plan(self.name, tasks, note=f"{kind} along {count}, {lanes} lanes")


def _neutral(kind: str, element: str) -> float | int:
    """What an exclusive scan starts with."""
    if kind in ("add", "mul"):
        return 0 if kind == "add" else 1
    if is_float(element):
        return -math.inf if kind == "max" else math.inf
    limit = 2 ** (bit_width(element) - 1)
    return -limit if kind == "max" else limit - 1
