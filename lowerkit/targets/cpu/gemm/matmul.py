"""``lk.matmul`` as a product of rows by panels: reads the op, checks it, and hands it to ``row_gemm``.

Batch dimensions of the left operand become rows where one right operand serves them all (every linear layer);
otherwise they are batches with strides of their own, 0 where numpy broadcasts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.gemm.arithmetic import of_numbers
from lowerkit.targets.cpu.gemm.problem import RowGemm
from lowerkit.targets.cpu.gemm.row_gemm import plan_row_gemm
from lowerkit.targets.cpu.gemm.tile_epilogue import make_tile_epilogue
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Index
from lowerkit.targets.cpu.text.region_values import Located, source_of
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import DeviceCode, Refusal, product
from lowerkit.targets.region_view import RegionView

__all__ = ["MatmulFamily"]

_FLOATS = ("f32", "f64", "f16", "bf16")


class MatmulFamily(KernelFamily):
    """Register-tiled ``lk.matmul`` for f32, f64, f16 and bf16 (narrow types widened, or multiplied pair by pair)."""

    name = "matmul"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Plans a region whose anchor is ``lk.matmul``; refuses integers and dynamic N or K."""
        anchor = region.anchor
        if anchor is None or anchor.operation.name != "lk.matmul":
            return Refusal("the anchor is not lk.matmul")
        frame = KernelFrame(region.buffer_types, region.invariant)
        frame.text.native_bf16 = cpu.avx512_bf16 and not region.invariant
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
    element = str(ir.RankedTensorType(anchor.operands[0].type).element_type)
    if element not in _FLOATS or any(str(ir.RankedTensorType(v.type).element_type) != element for v in anchor.operands):
        return Refusal(f"element type {element}: only floating point matrices are taken")
    accumulate_type = str(ir.TypeAttr(anchor.attributes["accumulate"]).value)
    if accumulate_type != ("f64" if element == "f64" else "f32"):
        return Refusal(f"sums in {accumulate_type}")
    left, right = (source_of(value, frame) for value in anchor.operands)
    if not isinstance(left, Located) or not isinstance(right, Located):
        return Refusal("an operand of the product is computed inside the region")
    flip_left = ir.BoolAttr(anchor.attributes["transpose_lhs"]).value
    flip_right = ir.BoolAttr(anchor.attributes["transpose_rhs"]).value
    *left_batch, m, k = left.sizes
    *right_batch, right_k, n = right.sizes
    if flip_left:
        m, k = k, m
    if flip_right:
        right_k, n = n, right_k
    if isinstance(k, Value):
        k = right_k
    if not isinstance(k, int) or not isinstance(n, int):
        return Refusal("dynamic N or K")
    if k == 0 or n == 0:
        return Refusal("an empty product")
    if any(isinstance(size, Value) for size in right.sizes[1:]):
        return Refusal("dynamic sizes inside the right operand")
    result = frame.sizes[len(region.operands)]
    extents = frame.extents[left.operand]
    if list(frame.sizes[left.operand]) != list(left.sizes):
        extents = [size if isinstance(size, int) else None for size in left.sizes]
    weight = right.operand if region.operands[right.operand].is_weight else None
    if weight is not None and list(frame.sizes[weight]) != list(right.sizes):
        weight = None  # reshaped on the way: packing would have to reshape too
    a_row, a_depth = (1, m) if flip_left else (k, 1)
    if isinstance(a_row, Value) or isinstance(a_depth, Value):
        return Refusal("a transposed left operand with dynamic M")
    shared = math.prod(size if isinstance(size, int) else 0 for size in right_batch) == 1
    if shared and not flip_left and len(left_batch) >= len(right_batch):
        rows = frame.text.iproduct([*left_batch, m])
        return RowGemm(
            (), (), rows, product(extents[:-1]), n, k, left.buffer, right.buffer, (), (), a_row, a_depth, flip_right,
            weight, of_numbers(element),
        )  # fmt: skip
    rows_extent = extents[-1 if flip_left else -2]
    while len(right_batch) == len(left_batch) > 0 and right_batch[-1] == 1 and not flip_left:
        right_batch.pop()  # one right operand serves these batches: they are rows
        m, rows_extent = frame.text.imul(left_batch.pop(), m), product([extents[len(left_batch)], rows_extent])
    if any(isinstance(size, Value) for size in [*left_batch[1:], *right_batch[1:]]):
        return Refusal("dynamic sizes behind the first batch dimension")
    rank = max(len(left_batch), len(right_batch))
    batch = [*result[:rank]]
    if len(batch) != rank:
        return Refusal("the result has another rank than the product")
    a_batch = _batch_strides(left_batch, rank, k)
    b_batch = _batch_strides(right_batch, rank, k * n)
    batch_extents = tuple(frame.extents[len(region.operands)][:rank])
    return RowGemm(
        tuple(batch), batch_extents, m, rows_extent, n, k, left.buffer, right.buffer, a_batch, b_batch, a_row, a_depth,
        flip_right, weight, of_numbers(element),
    )  # fmt: skip


def _batch_strides(sizes: Sequence[Index], rank: int, matrix: int) -> tuple[int, ...]:
    """Steps between matrices along each batch dimension of the result, aligned at the right as in numpy.

    Args:
        matrix: the step from one matrix to the next.
    """
    strides: list[int] = []
    stride = matrix
    for axis in range(rank - 1, -1, -1):
        own = axis - (rank - len(sizes))
        size = sizes[own] if own >= 0 else 1
        strides.append(0 if size == 1 else stride)
        stride *= size if isinstance(size, int) else 1
    return tuple(strides[::-1])
