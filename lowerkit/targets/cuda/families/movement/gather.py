"""``lk.gather``: slices of a table by index, in vectors; an embedding with what is added to it is one launch.

An index below 0 counts from the end; one outside of the table is clamped, so that nothing else is read.
"""

from __future__ import annotations

from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.movement.slices import joined_mask, slice_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.tensors import Frame, Tensor, load, offset_text, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal, expression
from lowerkit.targets.region_view import RegionView


class GatherFamily(KernelFamily):
    """``lk.gather`` of every element type, along any axis, with an epilogue."""

    name: ClassVar[str] = "gather"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        anchor = region.anchor
        if anchor is None or anchor.operation.name != "lk.gather":
            return Refusal("the anchor is not lk.gather")
        frame = Frame(region)
        table, indices = (frame.source(value) for value in anchor.operation.operands)
        if not isinstance(table, Tensor) or not isinstance(indices, Tensor):
            return Refusal("an operand is computed inside the region")
        axis = ir.IntegerAttr(anchor.operation.attributes["axis"]).value
        count = len(indices.sizes)
        sizes = (*table.sizes[:axis], *indices.sizes, *table.sizes[axis + 1 :])
        if 0 in (*sizes, table.sizes[axis]):
            return Refusal("nothing to compute")
        epilogue = read_epilogue(region, frame, anchor.operation)
        if isinstance(epilogue, Refusal):
            return epilogue
        writer = KernelWriter()
        tile = slice_tile(writer, sizes, axis + count, wide=frame.wide)
        # What each dim of the result means to the operands; the index says where the slice begins.
        behind: tuple[KernelExpr, ...] = table.strides[axis + 1 :]
        along_indices = (*(0,) * axis, *indices.strides, *(0,) * len(behind))
        along_table = (*table.strides[:axis], *(0,) * count, *behind)
        looked_up = [tile.place] if any(stride != 0 for stride in along_indices) else []  # none: there is one index
        place = offset_text(writer, along_indices, indices.offset, looked_up)
        index = load(writer, indices, place, tile.place.mask if looked_up else None, "0")
        position = writer.let(table_position(writer, index, table.sizes[axis], wide=frame.wide), "position")
        begin = writer.let(
            (tile.spread if looked_up else str)(f"({position} * {render(table.strides[axis])})"), "begin"
        )
        at = f"{begin} + {offset_text(writer, along_table, table.offset, tile.axes)}"
        value = load(writer, table, at, joined_mask(writer, tile.axes))
        epilogue.write(writer, value, tile.axes)
        source = writer.source(len(frame.buffers), frame.dims)
        kernel = TritonKernel(self.name, source, pointer_types(frame), frame.dims, tile.warps)
        bytes_ = [buffer.bytes for buffer in frame.buffers]
        written = bytes_[-1]
        return one_kernel(
            kernel, bytes_, len(region.operands), tile.blocks, note=tile.words,
            read=expression("add", indices.bytes, written), written=written,
        )  # fmt: skip


def table_position(writer: KernelWriter, index: str, size: KernelExpr, *, wide: bool) -> str:
    """Returns an index as a position in the table: from the end where it is negative, and within the table."""
    whole = writer.let(f"{index}.to(tl.int64)")
    from_end = writer.let(f"tl.where({whole} < 0, {whole} + {render(size)}, {whole})")
    inside = f"tl.maximum(tl.minimum({from_end}, {render(size)} - 1), 0)"
    return inside if wide else f"{inside}.to(tl.int32)"
