"""``lk.gather``: slices of a table by index, such as the rows of an embedding.

A slice is one contiguous run (everything after the indexed axis), copied in whole vectors. The rows of a table that a
product has in panels (:mod:`lowerkit.codegen.shared_tables`) are read from there, elements a panel's width apart.
Negative indices count from the end; others outside the table are clamped, so no input makes the kernel read outside of
it. Bytes: the indices once, the slices asked for once, the result once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.reductions.row_frame import anchor_operand
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value, element_bytes
from lowerkit.targets.cpu.vector.epilogue import make_epilogue
from lowerkit.targets.plan import DeviceCode, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

__all__ = ["GatherFamily"]

_GRAIN_BYTES = 1 << 15


class GatherFamily(KernelFamily):
    """``lk.gather`` of any element type along any axis, with an epilogue."""

    name: ClassVar[str] = "gather"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not a gather."""
        if region.anchor is None or region.anchor.operation.name != "lk.gather":
            return Refusal("the anchor is not lk.gather")
        operation = region.anchor.operation
        frame = KernelFrame(region.buffer_types, region.invariant)
        text = frame.text
        data, indices = (anchor_operand(region, frame, number) for number in (0, 1))
        if isinstance(data, Refusal):
            return data
        if isinstance(indices, Refusal):
            return indices
        epilogue = make_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        axis = ir.IntegerAttr(operation.attributes["axis"]).value
        packing = region.layouts.get(data.operand) if axis == 0 and len(data.sizes) == 2 else None
        panel = 1 if packing is None else dict(packing.parameters)["panel"]
        index_rank, rank = len(indices.sizes), len(data.sizes) + len(indices.sizes) - 1
        result = [list(range(axis)), list(range(axis, axis + index_rank)), list(range(axis + index_rank, rank))]
        merged = epilogue.collapsed(result, 2)
        if isinstance(merged, Refusal):
            return merged
        outer, size = text.iproduct(data.sizes[:axis]), data.sizes[axis]
        inner, count = text.iproduct(data.sizes[axis + 1 :]), text.iproduct(indices.sizes)
        width = element_bytes(data.buffer.element)
        lanes = cpu.vector_bits // (8 * (width if region.epilogue is None else max(4, width)))
        if isinstance(inner, int) and inner < 4:
            lanes = 1
        grain = max(1, _GRAIN_BYTES // (2 * width * inner)) if isinstance(inner, int) and inner else 1
        with frame.tasks() as task:
            first = text.imul(task, grain)
            with text.span(first, text.imin(text.imul(outer, count), text.iadd(first, grain))) as loop:
                block, position = text.unravel(loop.index, [outer, count])
                row = _position(text, text.read(indices.buffer, position), size)
                if panel == 1:
                    start = text.imul(text.iadd(text.imul(block, size), row), inner)
                else:
                    first_of_panel = text.imul(text.imul(text.idiv(row, panel), panel), inner)
                    start = text.iadd(first_of_panel, text.irem(row, panel))

                def copy(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                    place = text.iadd(start, text.imul(index, panel))
                    value = text.strided_read(data.buffer, place, panel, lanes, mask)
                    merged.store(value, [block, position, index], 2, mask)
                    return carried

                text.strip(inner, lanes, copy, unroll=4)
        table, positions = frame.extents[data.operand], frame.extents[indices.operand]
        rows = product([*table[:axis], *positions])
        plan = frame.plan(self.name, expression("ceildiv", rows, grain), note=f"slices of {inner}, {lanes} lanes")
        if packing is None:
            return plan
        note = f"{plan.note}, from panels of {panel} that a product reads"
        return replace(plan, packings={data.operand: packing}, note=note)


def _position(text: KernelText, raw: Value, size: Index) -> Index:
    """The row that an index means: from the end where negative, clamped into the table."""
    index = raw if raw.element == "i64" else text.cast("arith.extsi", raw, "i64")
    wrapped = text.select(text.compare("slt", index, text.i64(0)), text.as_value(text.iadd(index, size)), index)
    return text.imax(text.imin(wrapped, text.isub(size, 1)), 0)
