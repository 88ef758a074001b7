"""Typed scalars: what the body of a pointwise op computes with.

A :class:`Scalar` is a builtin value with the element type that PyTorch gives it. Builtin integers have no sign, so that
only here is it known that a byte is unsigned. Functions build at the current insertion point; operands are of one type.
"""

from __future__ import annotations

import math as python_math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowerkit.dialect import scalar_builder as build
from lowerkit.mlir import arith, ir, math
from lowerkit.passes.raising.core.promotion import WIDTHS, wrapped
from lowerkit.passes.raising.torch_dialect.torch_ir import FLOATS, LOW_PRECISION_FLOATS, RefusalError

# Of floats (ordered but for `ne`), of integers with sign and without: the numbers of arith's predicates.
_PREDICATES = {"eq": (1, 0, 0), "ne": (13, 1, 1), "lt": (4, 2, 6), "le": (5, 3, 7), "gt": (2, 4, 8), "ge": (3, 5, 9)}


@dataclass(frozen=True)
class Scalar:
    """A scalar of a body.

    Attributes:
        value: of builtin type.
        dtype: the element type in the torch dialect, such as ``ui8``.
        number: what it is, where that is known.
    """

    value: ir.Value
    dtype: str
    number: float | int | None = None

    @property
    def is_float(self) -> bool:
        """Whether it is a float."""
        return self.dtype in FLOATS

    @property
    def is_bool(self) -> bool:
        """Whether it is a bool."""
        return self.dtype == "i1"

    @property
    def is_unsigned(self) -> bool:
        """Whether it has no sign."""
        return self.dtype == "i1" or self.dtype.startswith("u")

    @property
    def width(self) -> int:
        """Its bits."""
        return WIDTHS[self.dtype]


def builtin_element(dtype: str) -> ir.Type:
    """Returns the builtin type of an element."""
    return ir.Type.parse(dtype if dtype in FLOATS else f"i{WIDTHS[dtype]}")


def constant(number: float | int, dtype: str) -> Scalar:
    """A number of ``dtype``: rounded, or cut off to the integer type."""
    if dtype in FLOATS:
        return Scalar(build.constant(float(number), builtin_element(dtype)), dtype, float(number))
    if not python_math.isfinite(number):
        raise RefusalError(f"the number {number} beside {dtype}")
    whole = wrapped(number, dtype)
    return Scalar(build.constant(wrapped(whole, dtype.replace("u", "s")), builtin_element(dtype)), dtype, whole)


def like(number: float | int, other: Scalar) -> Scalar:
    """A number of the type of ``other``."""
    return constant(number, other.dtype)


def applied(op: Callable[..., Any], first: Scalar, *rest: Scalar) -> Scalar:
    """Applies a builder of ``arith`` or ``math`` that gives the type of its operands."""
    return Scalar(op(first.value, *(other.value for other in rest)).result, first.dtype)


def nonzero(value: Scalar) -> Scalar:
    """Whether it is not zero; NaN is not."""
    return value if value.is_bool else compare("ne", value, like(0, value))


def cast(value: Scalar, dtype: str) -> Scalar:
    """Converts as eager does: to 16-bit floats through f32, to a bool by its truth."""
    if value.dtype == dtype:
        return value
    if dtype == "i1":
        return nonzero(value)
    target = builtin_element(dtype)
    if dtype in LOW_PRECISION_FLOATS and value.dtype != "f32":
        return cast(cast(value, "f32"), dtype)
    if dtype in FLOATS:
        if value.is_float:
            return Scalar(build.convert(value.value, target), dtype)
        return Scalar((arith.UIToFPOp if value.is_unsigned else arith.SIToFPOp)(target, value.value).result, dtype)
    if value.is_float and dtype == "ui32":  # as C does: what 64 bits hold is cut off
        return cast(cast(value, "si64"), dtype)
    if value.is_float:
        return Scalar((arith.FPToUIOp if dtype == "ui64" else arith.FPToSIOp)(target, value.value).result, dtype)
    if value.width == WIDTHS[dtype]:
        return Scalar(value.value, dtype)
    if value.width > WIDTHS[dtype]:
        return Scalar(arith.TruncIOp(target, value.value).result, dtype)
    return Scalar((arith.ExtUIOp if value.is_unsigned else arith.ExtSIOp)(target, value.value).result, dtype)


def compare(predicate: str, left: Scalar, right: Scalar) -> Scalar:
    """Compares by ``eq ne lt le gt ge``; with NaN only ``ne`` is true."""
    of_floats, signed, unsigned = _PREDICATES[predicate]
    if left.is_float:
        return Scalar(arith.CmpFOp(of_floats, left.value, right.value).result, "i1")
    return Scalar(arith.CmpIOp(unsigned if left.is_unsigned else signed, left.value, right.value).result, "i1")


def compare_number(predicate: str, left: Scalar, number: float | int) -> Scalar:
    """Compares with a number of the same type."""
    return compare(predicate, left, like(number, left))


def select(condition: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
    """One of two values."""
    return Scalar(build.select(condition.value, then.value, otherwise.value), then.dtype)


def add(left: Scalar, right: Scalar) -> Scalar:
    """The sum; of bools, whether one is true."""
    return either(left, right) if left.is_bool else Scalar(build.add(left.value, right.value), left.dtype)


def subtract(left: Scalar, right: Scalar) -> Scalar:
    """The difference; integers wrap around."""
    return Scalar(build.subtract(left.value, right.value), left.dtype)


def multiply(left: Scalar, right: Scalar) -> Scalar:
    """The product; of bools, whether both are true."""
    return both(left, right) if left.is_bool else Scalar(build.multiply(left.value, right.value), left.dtype)


def divide(left: Scalar, right: Scalar) -> Scalar:
    """The quotient of floats."""
    return applied(arith.DivFOp, left, right)


def scaled(value: Scalar, number: float) -> Scalar:
    """The product with a number; the value itself for 1."""
    return value if number == 1 else multiply(value, like(number, value))


def both(left: Scalar, right: Scalar) -> Scalar:
    """The bits that both have."""
    return applied(arith.AndIOp, left, right)


def either(left: Scalar, right: Scalar) -> Scalar:
    """The bits that one has."""
    return applied(arith.OrIOp, left, right)


def differ(left: Scalar, right: Scalar) -> Scalar:
    """The bits that one has alone."""
    return applied(arith.XOrIOp, left, right)


def inverted(value: Scalar) -> Scalar:
    """All bits turned over."""
    return differ(value, like(1 if value.is_bool else -1, value))


def is_nan(value: Scalar) -> Scalar:
    """Whether a value is NaN."""
    return compare("ne", value, value) if value.is_float else constant(0, "i1")


def negate(value: Scalar) -> Scalar:
    """The negative; integers wrap around."""
    return applied(arith.NegFOp, value) if value.is_float else subtract(like(0, value), value)


def absolute(value: Scalar) -> Scalar:
    """The magnitude."""
    if value.is_float:
        return applied(math.AbsFOp, value)
    return value if value.is_unsigned else select(compare_number("lt", value, 0), negate(value), value)


def whole_part(value: Scalar) -> Scalar:
    """Rounds towards zero."""
    if not value.is_float:
        return value
    return select(compare_number("lt", value, 0), applied(math.CeilOp, value), applied(math.FloorOp, value))


def larger(left: Scalar, right: Scalar) -> Scalar:
    """The larger of two; NaN where either is."""
    return _extreme("gt", left, right)


def smaller(left: Scalar, right: Scalar) -> Scalar:
    """The smaller of two; NaN where either is."""
    return _extreme("lt", left, right)


def _extreme(predicate: str, left: Scalar, right: Scalar) -> Scalar:
    chosen = select(compare(predicate, left, right), left, right)
    return select(is_nan(left), left, chosen) if left.is_float else chosen


def at_least(value: Scalar, low: float | int) -> Scalar:
    """``low`` where the value is less: one instruction, through which a NaN goes; all is NaN where ``low`` is."""
    return _limited("lt", value, low)


def at_most(value: Scalar, high: float | int) -> Scalar:
    """``high`` where the value is more: one instruction, through which a NaN goes; all is NaN where ``high`` is."""
    return _limited("gt", value, high)


def _limited(predicate: str, value: Scalar, limit: float | int) -> Scalar:
    bound = like(limit, value)
    return bound if python_math.isnan(limit) else select(compare(predicate, value, bound), bound, value)
