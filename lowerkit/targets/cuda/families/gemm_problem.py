"""What the writers of products are given: a batch of products, read from ``lk.matmul`` and ``lk.integer_matmul``."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.targets.cuda.triton.epilogue import Epilogue, read_epilogue
from lowerkit.targets.cuda.triton.tensors import Frame, Tensor
from lowerkit.targets.plan import KernelExpr, Refusal, product
from lowerkit.targets.region_view import RegionView

FLOATS = ("f32", "f16", "bf16", "f64")


@dataclass(frozen=True)
class Gemm:
    """``A[batch, rows, depth] x B[batch, depth, columns]``.

    Attributes:
        batch: sizes of the batch dims that are not part of the rows.
        row_sizes: sizes of the dims of the result that are the rows.
        columns, depth: N and K.
        a, b: the operands.
        a_batch, b_batch: strides along each batch dim, 0 where an operand is broadcast.
        a_strides: along rows and depth; b_strides: along depth and columns.
        unsigned: bytes of A are read as unsigned numbers.
    """

    batch: tuple[KernelExpr, ...]
    row_sizes: tuple[KernelExpr, ...]
    columns: KernelExpr
    depth: KernelExpr
    a: Tensor
    b: Tensor
    a_batch: tuple[KernelExpr, ...]
    b_batch: tuple[KernelExpr, ...]
    a_strides: tuple[KernelExpr, KernelExpr]
    b_strides: tuple[KernelExpr, KernelExpr]
    unsigned: bool = False

    @property
    def rows(self) -> KernelExpr:
        """M."""
        return product(self.row_sizes)

    @property
    def accumulator(self) -> str:
        """The type of sums."""
        return {"i8": "i32", "f64": "f64"}.get(self.a.element, "f32")

    @property
    def flops(self) -> KernelExpr:
        """Operations: a product and a sum are two."""
        return product([*self.batch, self.rows, self.columns, self.depth, 2])


@dataclass(frozen=True)
class GemmRegion:
    """A region whose anchor is a product.

    Attributes:
        frame: of the region.
        problem: the product.
        epilogue: what follows.
        result: the element type of the anchor's result.
    """

    frame: Frame
    problem: Gemm
    epilogue: Epilogue
    result: str


def read_gemm_region(region: RegionView) -> GemmRegion | Refusal:
    """Reads a region for the families that multiply."""
    anchor = region.anchor
    if anchor is None or anchor.operation.name not in ("lk.matmul", "lk.integer_matmul"):
        return Refusal("the anchor is no product of matrices")
    frame = Frame(region)
    problem = read_gemm(frame, anchor.operation)
    if isinstance(problem, Refusal):
        return problem
    epilogue = read_epilogue(region, frame, anchor.operation)
    if isinstance(epilogue, Refusal):
        return epilogue
    result = str(ir.RankedTensorType(anchor.operation.results[0].type).element_type)
    return GemmRegion(frame, problem, epilogue, result)


def read_gemm(frame: Frame, anchor: ir.Operation) -> Gemm | Refusal:
    """Reads an ``lk.matmul`` or ``lk.integer_matmul``."""
    integers = anchor.name == "lk.integer_matmul"
    elements = {str(ir.RankedTensorType(value.type).element_type) for value in anchor.operands}
    if not integers:
        elements.add(str(ir.RankedTensorType(anchor.results[0].type).element_type))
        accumulate = str(ir.TypeAttr(anchor.attributes["accumulate"]).value)
        if len(elements) != 1 or not elements <= set(FLOATS):
            return Refusal(f"elements of {', '.join(sorted(elements))}: one of {', '.join(FLOATS)} is taken")
        if accumulate != ("f64" if "f64" in elements else "f32"):
            return Refusal(f"sums in {accumulate}")
    left, right = (frame.source(value) for value in anchor.operands)
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return Refusal("an operand of the product is computed inside the region")
    if min(len(left.sizes), len(right.sizes)) < 2:
        return Refusal("an operand is no matrix")
    (m, k), (a_row, a_depth) = left.sizes[-2:], left.strides[-2:]
    if not integers and ir.BoolAttr(anchor.attributes["transpose_lhs"]).value:
        m, k, a_row, a_depth = k, m, a_depth, a_row
    (other, n), (b_depth, b_column) = right.sizes[-2:], right.strides[-2:]
    if ir.BoolAttr(anchor.attributes["transpose_rhs"]).value:
        other, n, b_depth, b_column = n, other, b_column, b_depth
    depth = k if isinstance(k, int) else other
    if 0 in (*left.sizes, *right.sizes):
        return Refusal("an empty product")
    unsigned = integers and ir.BoolAttr(anchor.attributes["unsigned"]).value
    strides = (a_row, a_depth), (b_depth, b_column)
    left_batch, right_batch = left.sizes[:-2], right.sizes[:-2]
    if product(right_batch) == 1 and left.contiguous and a_depth == 1 and len(left_batch) >= len(right_batch):
        return Gemm((), (*left_batch, m), n, depth, left, right, (), (), *strides, unsigned)
    result = frame.sizes_of(anchor.results[0])
    rank = max(len(left_batch), len(right_batch))
    if len(result) != rank + 2:
        return Refusal("the result is reshaped in the region")
    a_batch, b_batch = _batch_strides(left, rank), _batch_strides(right, rank)
    return Gemm(tuple(result[:rank]), (m,), n, depth, left, right, a_batch, b_batch, *strides, unsigned)


def _batch_strides(tensor: Tensor, rank: int) -> tuple[KernelExpr, ...]:
    """Strides along the batch dims; 0 where the size is one. Open extents that meet are equal."""
    sizes, strides = tensor.sizes[:-2], tensor.strides[:-2]
    kept = tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))
    return (0,) * (rank - len(kept)) + kept
