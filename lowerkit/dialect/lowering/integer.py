"""Products of 8-bit integers as linalg: those of floats with another body."""

from __future__ import annotations

from typing import Any

from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.lowering import conv as conv_lowering
from lowerkit.dialect.lowering import matmul as matmul_lowering
from lowerkit.mlir import arith, ir


def matmul(lhs: ir.Value, rhs: ir.Value, *, transpose_rhs: bool, unsigned: bool) -> ir.Value:
    """Multiplies matrices of i8 and sums in i32."""
    sums = ir.IntegerType.get_signless(32)
    return matmul_lowering.matmul(
        lhs,
        rhs,
        transpose_lhs=False,
        transpose_rhs=transpose_rhs,
        accumulate=sums,
        result_element=sums,
        body=_body(unsigned),
    )


def conv(source: ir.Value, filters: ir.Value, *, padding_value: int, unsigned: bool, **window: Any) -> ir.Value:
    """Convolves i8 and sums in i32."""
    sums = ir.IntegerType.get_signless(32)
    stored = padding_value - 256 if padding_value > 127 else padding_value
    return conv_lowering.conv(
        source,
        filters,
        accumulate=sums,
        result_element=sums,
        padding_value=stored,
        body=_body(unsigned),
        **window,
    )


def _body(unsigned: bool) -> matmul_lowering.Body:
    def add_product(left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
        wide = total.type
        first = arith.ExtUIOp(wide, left).result if unsigned else scalar.convert(left, wide)
        return scalar.add(total, scalar.multiply(first, scalar.convert(right, wide)))

    return add_product
