"""lk.integer_matmul and lk.integer_conv: products of 8-bit integers, summed exactly in 32 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import integer as lowering
from lowerkit.dialect.ops.conv import ConvOp
from lowerkit.dialect.ops.matmul import MatmulOp
from lowerkit.dialect.reference import window as numpy_window
from lowerkit.dialect.reference.numeric import matrix_product
from lowerkit.dialect.reference.quantize import read_stored
from lowerkit.dialect.shapes import element_count, fail, is_dynamic, per_dimension, ranked, tensor_type
from lowerkit.dialect.window import expand_padding, padding_pairs
from lowerkit.mlir import ext, ir


class IntegerMatmulOp(LkOperation, name="integer_matmul", traits=[ext.Pure]):
    """Multiplies matrices of 8-bit integers in the two last dimensions and sums in i32, which wraps around.

    ``result[..., m, n] = sum over k of lhs[..., m, k] * rhs[..., k, n]``. Zero points are no part of it: what they
    contribute is added to the result by the pass that builds the op.

    Operands:
        lhs: i8 ``[..., M, K]``.
        rhs: i8 ``[..., K, N]``, or ``[..., N, K]`` with transpose_rhs; of rank 2 it is shared by all batches. Signed.

    Results:
        result: i32 ``[..., M, N]``.

    Attributes:
        transpose_rhs: the two last dimensions of rhs are swapped.
        unsigned: the bits of lhs are read as unsigned numbers.

    FLOPs: ``2 * batch * M * N * K``.

    Bytes: operands and result, each once.
    """

    lhs: Operand
    rhs: Operand
    transpose_rhs: ir.BoolAttr
    unsigned: ir.BoolAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls, lhs: ir.Type, rhs: ir.Type, *, transpose_rhs: bool = False, unsigned: bool = False
    ) -> list[ir.Type]:
        """Returns ``[..., M, N]`` in i32; see :meth:`LkOperation.infer_result_types`."""
        require_bytes("lhs", lhs)
        require_bytes("rhs", rhs)
        return MatmulOp.infer_result_types(lhs, rhs, transpose_rhs=transpose_rhs)

    @classmethod
    def build(
        cls,
        lhs: ir.Value,
        rhs: ir.Value,
        *,
        transpose_rhs: bool = False,
        unsigned: bool = False,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op."""
        parameters = {"transpose_rhs": transpose_rhs, "unsigned": unsigned}
        return cls.create({"lhs": lhs, "rhs": rhs}, parameters, loc=loc, ip=ip).result

    def reference(self, lhs: Array, rhs: Array) -> tuple[Array, ...]:
        """Multiplies in int64 and keeps the low 32 bits."""
        left, right = read_stored(lhs, unsigned=self.unsigned.value), rhs.astype(np.int64)
        if self.transpose_rhs.value:
            right = np.swapaxes(right, -1, -2)
        return self.rounded(matrix_product(left, right))

    def build_linalg(self) -> list[ir.Value]:
        """Builds one linalg.generic."""
        return [lowering.matmul(self.lhs, self.rhs, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``2 * batch * M * N * K``."""
        depth = shape(self.rhs)[-1 if self.transpose_rhs.value else -2]
        depth = shape(self.lhs)[-1] if is_dynamic(depth) else depth
        products = element_count([*shape(self.result), depth])
        return None if products is None else 2 * products


class IntegerConvOp(LkOperation, name="integer_conv", traits=[ext.Pure]):
    """Slides a filter of 8-bit integers over 1 to 3 spatial dimensions and sums in i32, which wraps around.

    As :class:`lk.conv`, except that positions outside the input count as ``padding_value``: with the input's zero
    point there, padding means zero, and what zero points contribute is one number for each output channel.

    Operands:
        input: i8 ``[N, Cin, spatial...]``, or ``[N, spatial..., Cin]`` with channels_last.
        filter: i8 ``[Cout, Cin/groups, kernel...]`` in both layouts. Signed.

    Results:
        result: i32 ``[N, Cout, out...]`` or ``[N, out..., Cout]``, sizes as of lk.conv.

    Attributes:
        channels_last: the layout of input and result.
        strides: one for each spatial dimension.
        padding: ``low0, high0, low1, high1, ...``, not negative.
        dilation: the distance between filter taps, one for each spatial dimension.
        groups: the number of independent channel groups.
        padding_value: the number that positions outside the input count as.
        unsigned: the bits of the input are read as unsigned numbers.

    FLOPs: ``2 * N * Cout * out... * Cin/groups * kernel...``.

    Bytes: operands and result, each once.
    """

    input: Operand
    filter: Operand
    channels_last: ir.BoolAttr
    strides: ir.DenseI64ArrayAttr
    padding: ir.DenseI64ArrayAttr
    dilation: ir.DenseI64ArrayAttr
    groups: ir.IntegerAttr
    padding_value: ir.IntegerAttr
    unsigned: ir.BoolAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        input: ir.Type,
        filter: ir.Type,
        *,
        channels_last: bool = False,
        strides: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
        padding_value: int = 0,
        unsigned: bool = False,
    ) -> list[ir.Type]:
        """Returns the type of the result; see :meth:`LkOperation.infer_result_types`."""
        data = require_bytes("input", input)
        require_bytes("filter", filter)
        low, high = (0, 255) if unsigned else (-128, 127)
        if not low <= padding_value <= high:
            fail(f"attribute padding_value is {padding_value}, which does not lie within {low} to {high} of the input")
        (result,) = ConvOp.infer_result_types(
            input, filter, channels_last=channels_last, strides=strides, padding=padding, dilation=dilation,
            groups=groups,
        )  # fmt: skip
        assert isinstance(result, ir.RankedTensorType)
        return [tensor_type(result.shape, ir.IntegerType.get_signless(32, data.context))]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        filter: ir.Value,
        *,
        channels_last: bool = False,
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        padding_value: int = 0,
        unsigned: bool = False,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op. An int stands for every dimension; padding is flat low/high pairs."""
        count = ranked("filter", filter.type).rank - 2
        parameters: dict[str, Any] = {
            "channels_last": channels_last,
            "strides": per_dimension("strides", strides, count),
            "padding": expand_padding(padding, count),
            "dilation": per_dimension("dilation", dilation, count),
            "groups": groups,
            "padding_value": padding_value,
            "unsigned": unsigned,
        }
        return cls.create({"input": input, "filter": filter}, parameters, loc=loc, ip=ip).result

    def reference(self, input: Array, filter: Array) -> tuple[Array, ...]:
        """Convolves in int64 and keeps the low 32 bits."""
        channels_last = self.channels_last.value
        numbers = read_stored(input, unsigned=self.unsigned.value)
        data = numpy_window.channels_first(numbers, channels_last)
        around = [(0, 0), (0, 0), *padding_pairs(list(self.padding))]
        padded = np.pad(data, around, constant_values=self.padding_value.value)
        product = numpy_window.conv(
            padded,
            filter,
            strides=list(self.strides),
            padding=[0] * len(list(self.padding)),
            dilation=list(self.dilation),
            groups=self.groups.value,
        )
        return self.rounded(numpy_window.restore_layout(product, channels_last))

    def build_linalg(self) -> list[ir.Value]:
        """Builds a padded input and one linalg.generic."""
        return [lowering.conv(self.input, self.filter, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``2 * N * Cout * out... * Cin/groups * kernel...``."""
        products = element_count([*shape(self.result), *shape(self.filter)[1:]])
        return None if products is None else 2 * products


def require_bytes(name: str, kind: ir.Type) -> ir.RankedTensorType:
    """Returns ``kind`` as a tensor of i8, or fails."""
    data = ranked(name, kind)
    if str(data.element_type) != "i8":
        fail(f"operand {name} must have i8 elements, found {data.element_type}")
    return data
