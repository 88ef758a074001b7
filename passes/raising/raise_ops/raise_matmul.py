"""Raises matrix products: linear, mm, bmm, matmul, addmm, baddbmm and two-operand einsum become ``lk.matmul``.

A bias stays a separate ``aten.add``, which becomes an elementwise epilogue of the product. Transposes of the last two
dims of an operand are looked through and become flags, so that weights keep the layout in which they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import MatmulOp
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.raise_ops.einsum import einsum_product
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    broadcast_shape,
    cast,
    permute,
    signed,
    size,
    sizes_of,
    squeeze,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_build import product as product_of
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    TensorInfo,
    defining_op,
    from_builtin,
    int_of,
    ints_of,
    is_none,
    like_result,
    list_items,
    number_of,
    string_of,
    tensor_info,
    to_builtin,
)


def accumulation_type(dtype: str) -> ir.Type:
    """Returns the type in which products of ``dtype`` are summed: as wide as PyTorch's own kernels, or wider."""
    names = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64"}
    if dtype in names:
        return ir.Type.parse(names[dtype])
    if dtype in ("si8", "si16", "si32", "si64"):
        return ir.Type.parse(dtype.replace("s", "", 1))
    raise RefusalError(f"there is no matrix product of {dtype}")


def matrix_product(lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """Builds ``lhs @ rhs`` by the rules of ``torch.matmul``, vectors included."""
    dtype = tensor_info(lhs).dtype
    if dtype == "i1" or dtype.startswith("u"):
        return cast(matrix_product(signed(lhs), signed(rhs)), dtype)
    lhs_rank, rhs_rank = tensor_info(lhs).rank, tensor_info(rhs).rank
    if lhs_rank == 0 or rhs_rank == 0:
        raise RefusalError("an operand of a matrix product is a scalar")
    matrix = _product_of_matrices(
        unsqueeze(lhs, 0) if lhs_rank == 1 else lhs, unsqueeze(rhs, 1) if rhs_rank == 1 else rhs
    )
    if lhs_rank == 1:
        matrix = squeeze(matrix, tensor_info(matrix).rank - 2)
    if rhs_rank == 1:
        matrix = squeeze(matrix, tensor_info(matrix).rank - 1)
    return matrix


def _product_of_matrices(lhs: ir.Value, rhs: ir.Value, transpose_rhs: bool = False) -> ir.Value:
    lhs, transpose_lhs = _through_transpose(lhs)
    rhs, rhs_was_transposed = _through_transpose(rhs)
    transpose_rhs ^= rhs_was_transposed
    left, right = tensor_info(lhs), tensor_info(rhs)
    if left.dtype != right.dtype:
        raise RefusalError(f"operands of different element types, {left} and {right}")
    # lk broadcasts batch dims as numpy does, so ranks only need to match where both have batch dims.
    if left.rank == 2 and right.rank > 2:
        lhs = unsqueeze(lhs, 0)
        left = tensor_info(lhs)
    rows = left.shape[-1] if transpose_lhs else left.shape[-2]
    columns = right.shape[-2] if transpose_rhs else right.shape[-1]
    batch = broadcast_shape(left.shape[:-2], right.shape[:-2])
    product = MatmulOp.build(
        to_builtin(lhs),
        to_builtin(rhs),
        transpose_lhs=transpose_lhs,
        transpose_rhs=transpose_rhs,
        accumulate=accumulation_type(left.dtype),
    )
    return from_builtin(product, TensorInfo((*batch, rows, columns), left.dtype))


def _through_transpose(value: ir.Value) -> tuple[ir.Value, bool]:
    """Looks through ops that swap the last two dims and do nothing else."""
    swapped = False
    while (source := _source_of_transpose(value)) is not None:
        value, swapped = source, not swapped
    return value, swapped


def _source_of_transpose(value: ir.Value) -> ir.Value | None:
    op = defining_op(value, "torch.aten.t", "torch.aten.transpose.int", "torch.aten.permute", "torch.aten.numpy_T")
    if op is None:
        return None
    info = tensor_info(value)
    rank = info.rank
    if rank < 2:
        return None
    swap = [*range(rank - 2), rank - 1, rank - 2]
    if op.name in ("torch.aten.t", "torch.aten.numpy_T"):
        order = list(reversed(range(rank)))
    elif op.name == "torch.aten.permute":
        order = [info.normalized_axis(axis) for axis in ints_of(op.operands[1])]
    else:
        first, second = (info.normalized_axis(int_of(operand)) for operand in op.operands[1:3])
        order = list(range(rank))
        order[first], order[second] = second, first
    return op.operands[0] if order == swap else None


def _raise_linear(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    value, weight, bias = op.operands
    if tensor_info(weight).rank == 1:  # a weight that is a vector: one output feature without a dim of its own
        product = matrix_product(value, weight)
    else:
        is_vector = tensor_info(value).rank == 1
        product = _product_of_matrices(unsqueeze(value, 0) if is_vector else value, weight, transpose_rhs=True)
        product = squeeze(product, 0) if is_vector else product
    return like_result(product if is_none(bias) else binary("add", product, bias), op)


def _raise_product(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return like_result(matrix_product(op.operands[0], op.operands[1]), op)


def _raise_integer_product(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """_int_mm: products of bytes, summed in 32 bits."""
    return like_result(matrix_product(*(cast(operand, "si32") for operand in op.operands)), op)


def _raise_sum_of_product(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """addmm, baddbmm: (addend, lhs, rhs, beta, alpha)."""
    return _sum_of_product(op, op.operands[1], op.operands[2])


def _sum_of_product(op: ir.Operation, lhs: ir.Value, rhs: ir.Value) -> Sequence[ir.Value]:
    """``beta * addend + alpha * (lhs @ rhs)``."""
    addend, beta, alpha = op.operands[0], number_of(op.operands[3]), number_of(op.operands[4])
    product = matrix_product(lhs, rhs)
    if alpha != 1:
        product = binary_scalar("mul", product, alpha)
    if beta != 0:
        product = binary("add", product, addend if beta == 1 else binary_scalar("mul", addend, beta))
    return like_result(product, op)


def _raise_sum_of_products(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """addbmm: as addmm, of the matrices of a batch side by side."""
    lhs, rhs = op.operands[1], op.operands[2]
    (count, rows, inner), columns = sizes_of(lhs), size(rhs, 2)
    joined = product_of([count, inner])
    lhs = view(permute(lhs, [1, 0, 2]), [rows, joined])
    return _sum_of_product(op, lhs, view(rhs, [joined, columns]))


def _raise_einsum(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    operands = list_items(op.operands[1])
    return like_result(einsum_product(string_of(op.operands[0]), operands, matrix_product), op)


@dataclass(frozen=True)
class RaiseMatmul(TablePass):
    """Raises matrix products to ``lk.matmul``. Precondition: none."""

    name: ClassVar[str] = "raise-matmul"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.linear": _raise_linear,
        "torch.aten.mm": _raise_product,
        "torch.aten.bmm": _raise_product,
        "torch.aten._int_mm": _raise_integer_product,
        "torch.aten.mv": _raise_product,
        "torch.aten.dot": _raise_product,
        "torch.aten.matmul": _raise_product,
        "torch.aten.addmm": _raise_sum_of_product,
        "torch.aten.baddbmm": _raise_sum_of_product,
        "torch.aten.addbmm": _raise_sum_of_products,
        "torch.aten.einsum": _raise_einsum,
    }
