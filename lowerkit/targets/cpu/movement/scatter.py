"""``lk.scatter`` of kind ``set``: slices written into a table by index, such as new keys into a cache.

The kernel changes the table where it lies and moves nothing but the slices: bytes are the indices once and the updates
twice. Slices that meet stay in order, as all updates of one block (everything before the indexed axis) are one task's.
Negative indices count from the end; an update whose index is outside of the table is left out.
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
from lowerkit.targets.plan import DeviceCode, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

__all__ = ["ScatterFamily"]

_GRAIN_BYTES = 1 << 15


class ScatterFamily(KernelFamily):
    """``lk.scatter`` of kind ``set`` with any element type along any axis, in place."""

    name: ClassVar[str] = "scatter"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not such a scatter."""
        if region.anchor is None or region.anchor.operation.name != "lk.scatter" or len(region.body_ops) != 1:
            return Refusal("not one lk.scatter alone")
        operation = region.anchor.operation
        kind = ir.StringAttr(operation.attributes["kind"]).value
        if kind != "set":
            return Refusal(f"a scatter that combines by {kind}")
        frame = KernelFrame(region.buffer_types, region.invariant)
        text = frame.text
        data, indices, updates = (anchor_operand(region, frame, number) for number in range(3))
        for located in (data, indices, updates):
            if isinstance(located, Refusal):
                return located
        assert not isinstance(data, Refusal)
        if any(located.operand == data.operand for located in (indices, updates) if not isinstance(located, Refusal)):
            return Refusal("the updates or the indices are the table itself")
        assert not isinstance(indices, Refusal)
        assert not isinstance(updates, Refusal)
        table = frame.buffers[len(region.operands)]
        axis = ir.IntegerAttr(operation.attributes["axis"]).value
        outer, size = text.iproduct(data.sizes[:axis]), data.sizes[axis]
        inner, count = text.iproduct(data.sizes[axis + 1 :]), text.iproduct(indices.sizes)
        width = element_bytes(table.element)
        lanes = cpu.vector_bits // (8 * width)
        if isinstance(inner, int) and inner < 4:
            lanes = 1
        extents, positions = frame.extents[data.operand], frame.extents[indices.operand]
        slices = product([*positions, *extents[axis + 1 :], width])
        blocks = expression("max", expression("floordiv", _GRAIN_BYTES, expression("max", slices, 1)), 1)
        moved = text.imul(text.imul(count, inner), width)
        grain = text.imax(text.idiv(_GRAIN_BYTES, text.imax(moved, 1)), 1)
        with frame.tasks() as task:
            first = text.imul(task, grain)
            with (
                text.span(first, text.imin(outer, text.iadd(first, grain))) as block,
                text.span(0, count) as update,
            ):
                raw = text.read(indices.buffer, update.index)
                inside, row = _position(text, raw, size)
                target = text.imul(text.iadd(text.imul(block.index, size), row), inner)
                source = text.imul(text.iadd(text.imul(block.index, count), update.index), inner)

                def copy(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                    value = text.read(updates.buffer, text.iadd(source, index), lanes, mask)
                    text.write(value, table, text.iadd(target, index), mask)
                    return carried

                with text.when(inside):
                    text.strip(inner, lanes, copy, unroll=4)
        tasks = expression("ceildiv", product(extents[:axis]), blocks)
        plan = frame.plan(self.name, tasks, note=f"slices of {inner}, {lanes} lanes, in place")
        return replace(plan, in_place={0: data.operand})


def _position(text: KernelText, raw: Value, size: Index) -> tuple[Value, Value]:
    """Whether an index lies in the table, and the row that it means: from the end where negative."""
    index = raw if raw.element == "i64" else text.cast("arith.extsi", raw, "i64")
    row = text.select(text.compare("slt", index, text.i64(0)), text.as_value(text.iadd(index, size)), index)
    return text.compare("ult", row, text.as_value(size)), row
