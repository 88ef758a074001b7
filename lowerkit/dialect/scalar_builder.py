"""Scalar arithmetic by element type, for the bodies that lowerings build at the current insertion point."""

from __future__ import annotations

from typing import Any

from lowerkit.dialect.shapes import fail
from lowerkit.dialect.types import is_bool, is_float
from lowerkit.mlir import arith, ir, math

_FLOAT_PREDICATES = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 6, "unordered": 14}
_INTEGER_PREDICATES = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}


def constant(number: Any, element: ir.Type) -> ir.Value:
    """Returns a constant; ``inf`` and ``nan`` are allowed for floats."""
    if is_float(element):
        return arith.ConstantOp(element, ir.FloatAttr.get(element, float(number))).result
    return arith.ConstantOp(element, ir.IntegerAttr.get(element, int(number))).result


def lowest(element: ir.Type) -> ir.Value:
    """Returns -inf, or the smallest integer."""
    return constant(float("-inf") if is_float(element) else -(1 << (element.width - 1)), element)


def highest(element: ir.Type) -> ir.Value:
    """Returns +inf, or the largest integer."""
    return constant(float("inf") if is_float(element) else (1 << (element.width - 1)) - 1, element)


def add(left: ir.Value, right: ir.Value) -> ir.Value:
    """Adds floats or integers (wrapping around) or index values."""
    return (arith.AddFOp if is_float(left.type) else arith.AddIOp)(left, right).result


def subtract(left: ir.Value, right: ir.Value) -> ir.Value:
    """Subtracts floats, integers or index values."""
    return (arith.SubFOp if is_float(left.type) else arith.SubIOp)(left, right).result


def multiply(left: ir.Value, right: ir.Value) -> ir.Value:
    """Multiplies floats, integers or index values."""
    return (arith.MulFOp if is_float(left.type) else arith.MulIOp)(left, right).result


def multiply_add(left: ir.Value, right: ir.Value, addend: ir.Value) -> ir.Value:
    """``left * right + addend`` of floats, rounded once."""
    return math.FmaOp(left, right, addend).result


def divide(left: ir.Value, right: ir.Value) -> ir.Value:
    """Divides floats."""
    return arith.DivFOp(left, right).result


def maximum(left: ir.Value, right: ir.Value) -> ir.Value:
    """The larger value; a NaN on either side wins."""
    return (arith.MaximumFOp if is_float(left.type) else arith.MaxSIOp)(left, right).result


def minimum(left: ir.Value, right: ir.Value) -> ir.Value:
    """The smaller value; a NaN on either side wins."""
    return (arith.MinimumFOp if is_float(left.type) else arith.MinSIOp)(left, right).result


def both(left: ir.Value, right: ir.Value) -> ir.Value:
    """Logical and of i1 values."""
    return arith.AndIOp(left, right).result


def either(left: ir.Value, right: ir.Value) -> ir.Value:
    """Logical or of i1 values."""
    return arith.OrIOp(left, right).result


def negate(value: ir.Value) -> ir.Value:
    """Logical not of an i1 value."""
    return arith.XOrIOp(value, constant(1, value.type)).result


def compare(predicate: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """Compares by ``eq ne lt le gt ge``: ordered for floats (ne is ordered too), signed for integers and index."""
    if is_float(left.type):
        return arith.CmpFOp(_FLOAT_PREDICATES[predicate], left, right).result
    if is_bool(left.type) and predicate in ("lt", "le", "gt", "ge"):
        # true is 1: as a signed i1 it would be -1.
        unsigned = {"lt": 6, "le": 7, "gt": 8, "ge": 9}[predicate]
        return arith.CmpIOp(unsigned, left, right).result
    return arith.CmpIOp(_INTEGER_PREDICATES[predicate], left, right).result


def is_nan(value: ir.Value) -> ir.Value:
    """Whether a float is NaN."""
    return arith.CmpFOp(_FLOAT_PREDICATES["unordered"], value, value).result


def select(condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    """Returns one of two values."""
    return arith.SelectOp(condition, then, otherwise).result


def exp(value: ir.Value) -> ir.Value:
    """The exponential of a float."""
    return math.ExpOp(value).result


def log(value: ir.Value) -> ir.Value:
    """The natural logarithm of a float."""
    return math.LogOp(value).result


def sqrt(value: ir.Value) -> ir.Value:
    """The square root of a float."""
    return math.SqrtOp(value).result


def floor(value: ir.Value) -> ir.Value:
    """Rounds a float down."""
    return math.FloorOp(value).result


def ceil(value: ir.Value) -> ir.Value:
    """Rounds a float up."""
    return math.CeilOp(value).result


def from_the_front(place: ir.Value, size: ir.Value) -> ir.Value:
    """Returns an index value counted from the front: one below 0 counts from the end."""
    return select(compare("lt", place, constant(0, place.type)), add(place, size), place)


def within(place: ir.Value, size: ir.Value) -> ir.Value:
    """Returns the index value of ``0 ... size - 1`` that is nearest to ``place``; 0 where there is none."""
    last = subtract(size, constant(1, size.type))
    return maximum(minimum(place, last), constant(0, place.type))


def is_within(place: ir.Value, size: ir.Value) -> ir.Value:
    """Whether an index value is in ``0 ... size - 1``."""
    return both(compare("ge", place, constant(0, place.type)), compare("lt", place, size))


def convert(value: ir.Value, target: ir.Type) -> ir.Value:
    """Converts a number to another element type: floats round to nearest even, i1 is 0 or 1, integers are signed."""
    source = value.type
    if source == target:
        return value
    if isinstance(source, ir.IndexType) or isinstance(target, ir.IndexType):
        if is_float(target) or is_float(source):
            return convert(convert(value, ir.IntegerType.get_signless(64)), target)
        return arith.IndexCastOp(target, value).result
    if is_float(source) and is_float(target):
        if source.width == target.width:  # f16 and bf16 meet in f32
            return convert(convert(value, ir.F32Type.get()), target)
        return (arith.ExtFOp if source.width < target.width else arith.TruncFOp)(target, value).result
    if is_float(target):
        return (arith.UIToFPOp if is_bool(source) else arith.SIToFPOp)(target, value).result
    if is_float(source):
        if is_bool(target):
            fail(f"no conversion from {source} to {target}: compare with zero instead")
        return arith.FPToSIOp(target, value).result
    if source.width > target.width:
        return arith.TruncIOp(target, value).result
    return (arith.ExtUIOp if is_bool(source) else arith.ExtSIOp)(target, value).result


def is_nonzero(value: ir.Value) -> ir.Value:
    """Whether a number is not zero; NaN is not zero."""
    if is_bool(value.type):
        return value
    if is_float(value.type):
        return arith.CmpFOp(13, value, constant(0, value.type)).result  # une: unordered or not equal
    return compare("ne", value, constant(0, value.type))
