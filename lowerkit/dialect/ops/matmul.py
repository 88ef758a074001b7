"""lk.matmul: batched matrix multiplication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import matmul as lowering
from lowerkit.dialect.reference.factors import factor
from lowerkit.dialect.reference.numeric import matrix_product, quiet
from lowerkit.dialect.shapes import (
    broadcast_shapes,
    compatible,
    compatible_types,
    element_count,
    fail,
    is_dynamic,
    ranked,
    tensor_type,
)
from lowerkit.dialect.types import compute_type, is_bool, is_float, is_integer, require_same_element
from lowerkit.mlir import ext, ir


class MatmulOp(LkOperation, name="matmul", traits=[ext.Pure]):
    """Multiplies matrices in the two last dimensions; the others are batch dimensions and broadcast as in numpy.

    ``result[..., m, n] = sum over k of lhs[..., m, k] * rhs[..., k, n]``

    Operands:
        lhs: ``[..., M, K]``, or ``[..., K, M]`` with transpose_lhs.
        rhs: ``[..., K, N]``, or ``[..., N, K]`` with transpose_rhs; of rank 2 it is shared by all batches.

    Results:
        result: ``[..., M, N]``, of the element type of the operands if they are floats, of ``accumulate`` if they
            are integers. Floats may also stay in ``accumulate``: sums that are not rounded, to be added to others.

    Attributes:
        transpose_lhs: the two last dimensions of lhs are swapped.
        transpose_rhs: the two last dimensions of rhs are swapped.
        accumulate: the type in which products are summed; the sum is rounded once at the end. Floats accumulate in
            a float that is at least as wide, integers in an integer.

    FLOPs: ``2 * batch * M * N * K``.

    Bytes: operands and result, each once.
    """

    lhs: Operand
    rhs: Operand
    transpose_lhs: ir.BoolAttr
    transpose_rhs: ir.BoolAttr
    accumulate: ir.TypeAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        lhs: ir.Type,
        rhs: ir.Type,
        *,
        transpose_lhs: bool = False,
        transpose_rhs: bool = False,
        accumulate: ir.Type | None = None,
    ) -> list[ir.Type]:
        """Returns ``[..., M, N]``; see :meth:`LkOperation.infer_result_types`."""
        left, right = ranked("lhs", lhs), ranked("rhs", rhs)
        for name, tensor in (("lhs", left), ("rhs", right)):
            if tensor.rank < 2:
                fail(f"operand {name} must have rank 2 or more, found {tensor} of rank {tensor.rank}")
        require_same_element("lhs", left.element_type, "rhs", right.element_type)
        sum_type = compute_type(left.element_type) if accumulate is None else accumulate
        check_accumulate(left.element_type, sum_type)
        m, left_k = _matrix(left.shape, transpose_lhs)
        right_k, n = _matrix(right.shape, transpose_rhs)
        if not compatible(left_k, right_k):
            fail(f"lhs {left} has K = {left_k}, rhs {right} has K = {right_k}: the contracted sizes must be equal")
        batch = broadcast_shapes("batch of lhs", left.shape[:-2], "batch of rhs", right.shape[:-2])
        element = left.element_type if is_float(left.element_type) else sum_type
        return [tensor_type([*batch, m, n], element)]

    @classmethod
    def build(
        cls,
        lhs: ir.Value,
        rhs: ir.Value,
        *,
        transpose_lhs: bool = False,
        transpose_rhs: bool = False,
        accumulate: ir.Type | None = None,
        unrounded: bool = False,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op; without ``accumulate``, f16 and bf16 sum in f32, narrow integers in i32.

        With ``unrounded`` the result is of the type of the sums.
        """
        if accumulate is None:
            accumulate = compute_type(ranked("lhs", lhs.type).element_type)
        parameters: dict[str, Any] = {
            "transpose_lhs": transpose_lhs,
            "transpose_rhs": transpose_rhs,
            "accumulate": accumulate,
        }
        types = cls.infer_result_types(lhs.type, rhs.type, **parameters) if unrounded else None
        wide = None if types is None else [_of_element(each, accumulate) for each in types]
        return cls.create({"lhs": lhs, "rhs": rhs}, parameters, result_types=wide, loc=loc, ip=ip).result

    def check(self) -> None:
        """Raises ``VerifyError`` if the op does not fit together; sums of floats may be left unrounded."""
        (expected,) = self.infer_result_types(self.lhs.type, self.rhs.type, **self.parameters())
        check_sums(self.result.type, expected, self.accumulate.value)

    def contraction_size(self, shape: Shapes = static_shape) -> Any:
        """Returns K, or DYNAMIC; from whichever operand knows it."""
        left = _matrix(shape(self.lhs), self.transpose_lhs.value)[1]
        right = _matrix(shape(self.rhs), self.transpose_rhs.value)[0]
        return right if is_dynamic(left) else left

    @quiet
    def reference(self, lhs: Array, rhs: Array) -> tuple[Array, ...]:
        """Multiplies in float64 or int64 and rounds once."""
        left, right = factor(lhs), factor(rhs)
        if self.transpose_lhs.value:
            left = np.swapaxes(left, -1, -2)
        if self.transpose_rhs.value:
            right = np.swapaxes(right, -1, -2)
        return self.rounded(matrix_product(left, right))

    def build_linalg(self) -> list[ir.Value]:
        """Builds one linalg.generic that sums in ``accumulate``, and a rounding one where the types differ."""
        return [lowering.matmul(self.lhs, self.rhs, **self.parameters(), result_element=self.result.type.element_type)]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``2 * batch * M * N * K``."""
        outputs = element_count([*shape(self.result), self.contraction_size(shape)])
        return None if outputs is None else 2 * outputs


def _of_element(type_: ir.Type, element: ir.Type) -> ir.Type:
    return tensor_type(list(ranked("result", type_).shape), element)


def check_sums(found: ir.Type, expected: ir.Type, accumulate: ir.Type) -> None:
    """Fails unless a result is of the expected type, or of that with the sums as they are, which are not rounded."""
    if not any(compatible_types(each, found) for each in (expected, _of_element(expected, accumulate))):
        fail(f"result 0 has type {found}, but the operands and attributes give {expected}")


def check_accumulate(element: ir.Type, accumulate: ir.Type) -> None:
    """Fails unless sums of products of ``element`` may be carried in ``accumulate``."""
    if is_bool(element) or not (is_float(element) or is_integer(element)):
        fail(f"operands must have float or integer elements of 8 bits or more, found {element}")
    if is_float(element) != is_float(accumulate) or is_integer(element) != is_integer(accumulate):
        fail(f"attribute accumulate is {accumulate}, which cannot sum products of {element}")
    if accumulate.width < element.width:
        fail(f"attribute accumulate is {accumulate}, narrower than the operands' {element}")


def _matrix(shape: Sequence[Any], transpose: bool) -> tuple[int, int]:
    rows, columns = shape[-2], shape[-1]
    return (columns, rows) if transpose else (rows, columns)
