"""What the families of rows read of a region, and the launch that they make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.rowwise.row_tiles import RowTile
from lowerkit.targets.cuda.families.rowwise.rows import Rows, compute_type
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.epilogue import Epilogue, read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.tensors import Frame, Tensor, element_bytes, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

_NUMBERS = ("f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64", "i1")


@dataclass(frozen=True)
class RowRegion:
    """A region whose anchor works on rows of its first operand.

    Attributes:
        region, frame, anchor, epilogue: of it.
        source: the first operand.
        result: the element type of the anchor's (first) result.
    """

    region: RegionView
    frame: Frame
    anchor: ir.Operation
    epilogue: Epilogue
    source: Tensor
    result: str

    @property
    def compute(self) -> str:
        """The type in which floats are computed."""
        return compute_type(self.source.element)

    def float_operand(self, field: str) -> Tensor | Refusal | None:
        """Returns a float operand of the anchor, None where it is absent."""
        assert self.region.anchor is not None, "read_rows found one"
        value = getattr(self.region.anchor, field, None)
        if value is None:
            return None
        tensor = self.frame.source(value)
        if not isinstance(tensor, Tensor):
            return Refusal(f"the {field} is computed inside the region")
        if tensor.element == "f64" and self.compute != "f64":
            return Refusal(f"the {field} is f64, the rows are not")
        return tensor

    def rows(
        self,
        writer: KernelWriter,
        source: Tensor,
        reduced: Sequence[int],
        choose: Callable[[KernelExpr, KernelExpr, bool, int], RowTile],
        compute: str = "",
    ) -> Rows:
        """Writes the rows of a block along ``reduced`` dims of ``source``."""
        tile = self.tile(source, reduced, choose, compute)
        return Rows(writer, source.sizes, reduced, tile, wide=self.frame.wide)

    def tile(
        self,
        source: Tensor,
        reduced: Sequence[int],
        choose: Callable[[KernelExpr, KernelExpr, bool, int], RowTile],
        compute: str = "",
    ) -> RowTile:
        """Returns the tile for rows along ``reduced`` dims of ``source``."""
        count = product([size for axis, size in enumerate(source.sizes) if axis not in reduced])
        length = product([source.sizes[axis] for axis in reduced])
        width = max(4, element_bytes(compute or self.compute))
        return choose(count, length, runs_along(source, reduced), width)

    def planned(
        self, family: str, writer: KernelWriter, rows: Rows, flops: int, blocks: KernelExpr | None = None
    ) -> PlannedRegion:
        """Returns the region as one launch, ``flops`` for each element."""
        frame, operands = self.frame, len(self.region.operands)
        kernel = TritonKernel(
            family, writer.source(len(frame.buffers), frame.dims), pointer_types(frame), frame.dims, rows.tile.warps
        )
        bytes_ = [buffer.bytes for buffer in frame.buffers]
        return one_kernel(
            kernel,
            bytes_,
            operands,
            rows.blocks if blocks is None else blocks,
            note=rows.tile.words,
            flops=product([rows.count, rows.length, flops]),
            read=total(bytes_[:operands]),
            written=total(bytes_[operands:]),
        )


def read_rows(
    region: RegionView, anchors: Sequence[str], elements: Sequence[str] = _NUMBERS, *, several_results: bool = False
) -> RowRegion | Refusal:
    """Reads a region with one of ``anchors`` and elements of ``elements``; one with nothing in it is refused.

    With ``several_results``, the region returns results of the anchor as they are, and there is no epilogue to write.
    """
    anchor = region.anchor
    if anchor is None or anchor.operation.name not in anchors:
        return Refusal(f"the anchor is not {' or '.join(anchors)}")
    frame = Frame(region)
    source = frame.source(anchor.operation.operands[0])
    if not isinstance(source, Tensor):
        return Refusal("the input is computed inside the region")
    if source.element not in elements:
        return Refusal(f"elements of {source.element}: one of {', '.join(elements)} is taken")
    if 0 in source.sizes:
        return Refusal("nothing to compute")
    if several_results:
        if any(value.owner != anchor.operation for value in region.returned):
            return Refusal("a result is not that of the anchor")
        epilogue = Epilogue(None, (), (), (), (), frame.index, ())
    else:
        epilogue = read_epilogue(region, frame, anchor.operation)
    if isinstance(epilogue, Refusal):
        return epilogue
    result = str(ir.RankedTensorType(anchor.operation.results[0].type).element_type)
    return RowRegion(region, frame, anchor.operation, epilogue, source, result)


def runs_along(source: Tensor, reduced: Sequence[int]) -> bool:
    """Whether neighbours in memory lie in one row, rather than in neighbouring rows."""
    strides = {stride: axis for axis, stride in enumerate(source.strides) if source.sizes[axis] != 1}
    return strides.get(1, reduced[-1] if reduced else -1) in reduced


def total(sizes: Sequence[KernelExpr]) -> KernelExpr:
    """Returns a sum."""
    result: KernelExpr = 0
    for size in sizes:
        result = expression("add", result, size)
    return result
