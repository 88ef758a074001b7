"""``lk.integer_matmul`` with a constant right operand, as a product over elements of four bytes.

The writer is that of ``matmul``: an element is an ``i32`` that holds four bytes along K, a multiplication is a dot
product of bytes (``byte_dot_products.py``). The sums are exact, so every tile, block and level gives the same bits.
"""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.gemm.arithmetic import BYTE_QUADS
from lowerkit.targets.cpu.gemm.problem import RowGemm
from lowerkit.targets.cpu.gemm.row_gemm import plan_row_gemm
from lowerkit.targets.cpu.gemm.tile_epilogue import make_tile_epilogue
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer
from lowerkit.targets.cpu.text.region_values import Located, source_of
from lowerkit.targets.plan import DeviceCode, Refusal, product
from lowerkit.targets.region_view import RegionView

__all__ = ["IntegerMatmulFamily"]

_BYTES = BYTE_QUADS.numbers


class IntegerMatmulFamily(KernelFamily):
    """Register-tiled products of unsigned by signed bytes, the right operand a weight of rank 2."""

    name = "integer_matmul"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Plans a region whose anchor is ``lk.integer_matmul``; refuses signed left operands and K not whole fours."""
        anchor = region.anchor
        if anchor is None or anchor.operation.name != "lk.integer_matmul":
            return Refusal("the anchor is not lk.integer_matmul")
        frame = KernelFrame(region.buffer_types, region.invariant)
        frame.text.vnni = cpu.avx512_vnni
        epilogue = make_tile_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        problem = _read_problem(region, frame)
        if isinstance(problem, Refusal):
            return problem
        return plan_row_gemm(self.name, problem, frame, epilogue, cpu)


def _read_problem(region: RegionView, frame: KernelFrame) -> RowGemm | Refusal:
    assert region.anchor is not None
    anchor = region.anchor.operation
    if not ir.BoolAttr(anchor.attributes["unsigned"]).value:
        return Refusal("the left operand is signed: byte products take unsigned ones")
    left, right = (source_of(value, frame) for value in anchor.operands)
    if not isinstance(left, Located) or not isinstance(right, Located):
        return Refusal("an operand of the product is computed inside the region")
    if not region.operands[right.operand].is_weight or list(frame.sizes[right.operand]) != list(right.sizes):
        return Refusal("the right operand is not a weight")
    if len(right.sizes) != 2:
        return Refusal("the right operand has batches")
    transposed = ir.BoolAttr(anchor.attributes["transpose_rhs"]).value
    depth, columns = (right.sizes[1], right.sizes[0]) if transposed else right.sizes
    assert isinstance(depth, int), "a weight has a static shape"
    assert isinstance(columns, int), "a weight has a static shape"
    if depth == 0 or columns == 0:
        return Refusal("an empty product")
    if depth % _BYTES:
        return Refusal(f"K = {depth} is no multiple of four bytes")
    extents = frame.extents[left.operand]
    if list(frame.sizes[left.operand]) != list(left.sizes):
        extents = [size if isinstance(size, int) else None for size in left.sizes]
    rows = frame.text.iproduct(list(left.sizes[:-1]))
    a, b = (Buffer(source.buffer.pointer, BYTE_QUADS.stored) for source in (left, right))
    return RowGemm(
        (), (), rows, product(extents[:-1]), columns, depth, a, b, (), (), depth // _BYTES, 1, transposed,
        right.operand, BYTE_QUADS,
    )  # fmt: skip
