"""The insertion of a slice into an operand, in place: what moves is what is inserted, however large the operand is.

A place may be a number, one of the open extents, or depend on data: then an element whose place is outside of the
operand is left out.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from lowerkit.codegen.in_place import insertion
from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.movement.slices import SliceTile, joined_mask, slice_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.places import place_text
from lowerkit.targets.cuda.triton.scalars import NoCode, constant
from lowerkit.targets.cuda.triton.tensors import (
    Frame,
    Splat,
    Tensor,
    coordinate_text,
    element_bytes,
    load,
    offset_text,
    pointer_types,
    store,
)
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal, product
from lowerkit.targets.region_view import RegionView

_DYNAMIC = -(2**63)


class InsertFamily(KernelFamily):
    """Regions that are ``tensor.insert_slice`` into an operand that nothing else of the region reads."""

    name: ClassVar[str] = "insert"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        found = insertion(region.block)
        if found is None:
            return Refusal("it is no insertion into an operand")
        if len(region.results) != 1:
            return Refusal("several results")
        op, changed = found
        frame = Frame(region)
        source = frame.source(op.operands[0])
        if not isinstance(source, Tensor | Splat):
            return Refusal("what is inserted is computed inside the region")
        writer = KernelWriter()
        try:
            insert = _Insertion(writer, frame, op)
        except NoCode as error:
            return Refusal(f"{error} has no translation")
        if insert.sizes is None or 0 in insert.sizes or any(not isinstance(step, int) for step in insert.steps):
            return Refusal("a slice without elements, of a size that depends on data, or with gaps of an open size")
        strides = insert.source_strides(source)
        if strides is None:
            return Refusal("a slice that drops dims in more than one way")
        tile = slice_tile(writer, insert.sizes, insert.places, wide=frame.wide)
        value = insert.read(source, strides, tile)
        insert.write(value, tile)
        kernel_source = writer.source(len(frame.buffers), frame.dims)
        kernel = TritonKernel(self.name, kernel_source, pointer_types(frame), frame.dims, tile.warps)
        moved = product([*insert.sizes, element_bytes(frame.results[0].element)])
        planned = one_kernel(
            kernel, [buffer.bytes for buffer in frame.buffers], len(region.operands), tile.blocks,
            note=f"{tile.words}, in place", read=moved, written=moved,
        )  # fmt: skip
        return replace(planned, function=replace(planned.function, in_place={0: changed}))


class _Insertion:
    """The op, read: sizes of what is inserted; for each dim the place of the first element, as text, and the step.

    Attributes:
        places: how many dims are places of slices that lie in one piece.
    """

    def __init__(self, writer: KernelWriter, frame: Frame, op: ir.Operation) -> None:
        self.writer, self.frame = writer, frame
        (self.result,) = frame.results
        counts = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        operands = iter(op.operands)
        segments = [[next(operands) for _ in range(count)] for count in counts][2:]
        static = [
            list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in ("offsets", "sizes", "strides")
        ]
        starts, sizes, steps = (
            [next(open_) if each == _DYNAMIC else each for each in numbers]
            for numbers, open_ in zip(static, map(iter, segments), strict=True)
        )
        self.starts = [str(each) if isinstance(each, int) else place_text(writer, frame, each) for each in starts]
        self.fixed = [
            isinstance(start, int) and isinstance(size, int) for start, size in zip(starts, sizes, strict=True)
        ]
        known = [each if isinstance(each, int) else frame.index(each) for each in sizes]
        self.sizes: list[KernelExpr] | None = None if None in known else known
        self.steps = [each if isinstance(each, int) else None for each in steps]
        self.rank = ir.RankedTensorType(op.operands[0].type).rank
        whole = [
            start == 0 and step == 1 and size == extent
            for start, step, size, extent in zip(starts, self.steps, known, self.result.sizes, strict=True)
        ]
        self.places = min(max((axis + 1 for axis, each in enumerate(whole) if not each), default=0), len(whole) - 1)

    def source_strides(self, source: Tensor | Splat) -> list[KernelExpr] | None:
        """Returns a stride of the source for each dim of the result; None where it is not clear which dims it has."""
        assert self.sizes is not None, "it was looked at"
        if isinstance(source, Splat):
            return [0] * len(self.sizes)
        if self.rank == len(self.sizes):
            return list(source.strides)
        kept = [axis for axis, size in enumerate(self.sizes) if size != 1]
        if len(kept) != self.rank:
            return None
        strides: list[KernelExpr] = [0] * len(self.sizes)
        for axis, stride in zip(kept, source.strides, strict=True):
            strides[axis] = stride
        return strides

    def read(self, source: Tensor | Splat, strides: list[KernelExpr], tile: SliceTile) -> str:
        """Writes the loads of a tile."""
        if isinstance(source, Splat):
            return self.writer.let(constant(source.number, source.element))
        place = offset_text(self.writer, strides, source.offset, tile.axes)
        return load(self.writer, source, place, joined_mask(self.writer, tile.axes))

    def write(self, value: str, tile: SliceTile) -> None:
        """Writes the stores of a tile; elements whose place may lie outside are asked first."""
        writer, result = self.writer, self.result
        strides: list[KernelExpr] = []
        terms: list[str] = []
        inside: list[str] = []
        for axis, (start, step, stride) in enumerate(zip(self.starts, self.steps, result.strides, strict=True)):
            assert step is not None, "it was looked at"
            strides.append(stride * step if isinstance(stride, int) else ("mul", stride, step))
            if start != "0":
                terms.append(f"{start} * {render(stride)}")
            if not self.fixed[axis]:
                at = coordinate_text(writer, axis, tile.axes)
                at = writer.let(f"({at}) * {step} + {start}", "at")
                inside.append(f"({at} >= 0) & ({at} < {render(result.sizes[axis])})")
        mask = joined_mask(writer, tile.axes, *inside)
        place = " + ".join([offset_text(writer, strides, result.offset, tile.axes), *terms])
        store(writer, result, place, value, mask)
