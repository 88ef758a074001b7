"""Arithmetic of two: sums, products, quotients and what they leave, extremes and limits."""

from __future__ import annotations

import math as python_math
from collections.abc import Mapping

from lowerkit.mlir import arith, math
from lowerkit.passes.raising.core.pointwise import Pointwise
from lowerkit.passes.raising.core.scalars import (
    Scalar,
    absolute,
    add,
    applied,
    at_least,
    at_most,
    both,
    compare,
    compare_number,
    differ,
    divide,
    larger,
    like,
    multiply,
    negate,
    scaled,
    select,
    smaller,
    subtract,
    whole_part,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import RefusalError


def _sum(left: Scalar, right: Scalar, alpha: float = 1) -> Scalar:
    return add(left, scaled(right, alpha))


def _difference(left: Scalar, right: Scalar, alpha: float = 1) -> Scalar:
    return subtract(left, scaled(right, alpha))


def _reversed_difference(left: Scalar, right: Scalar, alpha: float = 1) -> Scalar:
    return subtract(right, scaled(left, alpha))


# Division. Eager refuses integers divided by 0, and the smallest by -1 overflows: code generation guards both.


def _truncated_remainder(value: Scalar, divisor: Scalar) -> Scalar:
    """fmod: of the sign of the value; of floats it is exact."""
    if value.is_float:
        return applied(arith.RemFOp, value, divisor)
    return applied(arith.RemUIOp if value.is_unsigned else arith.RemSIOp, value, divisor)


def _is_apart(remainder: Scalar, divisor: Scalar) -> Scalar:
    """Whether the remainder has not the sign of the divisor: rounding down gives one less than towards zero."""
    signs = differ(compare_number("lt", remainder, 0), compare_number("lt", divisor, 0))
    return both(signs, compare_number("ne", remainder, 0))


def _remainder(value: Scalar, divisor: Scalar) -> Scalar:
    """remainder: of the sign of the divisor."""
    left = _truncated_remainder(value, divisor)
    if value.is_unsigned:
        return left
    return select(_is_apart(left, divisor), add(left, divisor), left)


def _truncated_quotient(value: Scalar, divisor: Scalar) -> Scalar:
    if value.is_float:
        return whole_part(divide(value, divisor))
    return applied(arith.DivUIOp if value.is_unsigned else arith.DivSIOp, value, divisor)


def _floor_quotient(value: Scalar, divisor: Scalar) -> Scalar:
    """PyTorch's ``div_floor_floating``: what the remainder leaves, divided, is whole but for rounding."""
    left = _truncated_remainder(value, divisor)
    if value.is_unsigned:
        return _truncated_quotient(value, divisor)
    apart, one = _is_apart(left, divisor), like(1, value)
    if not value.is_float:
        quotient = _truncated_quotient(value, divisor)
        return select(apart, subtract(quotient, one), quotient)
    zero, plain = like(0, value), divide(value, divisor)
    quotient = divide(subtract(value, left), divisor)
    quotient = select(apart, subtract(quotient, one), quotient)
    down = applied(math.FloorOp, quotient)
    up = compare_number("gt", subtract(quotient, down), 0.5)
    # A quotient of 0 has the sign of the exact one.
    signed_zero = applied(math.CopySignOp, zero, plain)
    whole = select(compare("ne", quotient, zero), select(up, add(down, one), down), signed_zero)
    return select(compare("eq", divisor, zero), plain, whole)


def _quotient(value: Scalar, divisor: Scalar, mode: str | None = None) -> Scalar:
    rounded = {None: divide, "trunc": _truncated_quotient, "floor": _floor_quotient}
    if mode not in rounded:
        raise RefusalError(f"a division rounded by {mode!r}")
    return rounded[mode](value, divisor)


# Limits.


def _clamped(value: Scalar, low: Scalar | None = None, high: Scalar | None = None) -> Scalar:
    """``min(max(value, low), high)``; of numbers, everything is NaN where one is."""
    numbers = [limit.number for limit in (low, high) if limit is not None and limit.number is not None]
    if any(python_math.isnan(number) for number in numbers):
        return like(python_math.nan, value)
    if low is not None:
        value = larger(value, low) if low.number is None else at_least(value, low.number)
    if high is not None:
        value = smaller(value, high) if high.number is None else at_most(value, high.number)
    return value


def _clamped_below(value: Scalar, high: Scalar) -> Scalar:
    return _clamped(value, None, high)


def _hard_tanh(value: Scalar, low: float = -1.0, high: float = 1.0) -> Scalar:
    return _clamped(value, like(low, value), like(high, value))


# Terms of three.


def _plus_product(base: Scalar, left: Scalar, right: Scalar, factor: float = 1) -> Scalar:
    """addcmul: ``base + (factor * left) * right``, in PyTorch's order."""
    return add(base, multiply(scaled(left, factor), right))


def _plus_quotient(base: Scalar, left: Scalar, right: Scalar, factor: float = 1) -> Scalar:
    """addcdiv: ``base + (factor * left) / right``, in PyTorch's order."""
    return add(base, divide(scaled(left, factor), right))


def _interpolated(start: Scalar, end: Scalar, weight: Scalar) -> Scalar:
    """lerp: computed from the end that is nearer, as PyTorch does."""
    span = subtract(end, start)
    if weight.number is not None:
        number = weight.number
        if abs(number) < 0.5:
            return add(start, scaled(span, number))
        return subtract(end, scaled(span, 1 - number))
    low = add(start, multiply(span, weight))
    high = subtract(end, multiply(span, subtract(like(1, weight), weight)))
    return select(compare_number("lt", absolute(weight), 0.5), low, high)


_SUM = Pointwise(_sum, 2, wide=False)
_DIFFERENCE = Pointwise(_difference, 2, wide=False)
_PRODUCT = Pointwise(multiply, 2, wide=False, digits=(1,))
_TRUE_QUOTIENT = Pointwise(divide, 2, wide=False, digits=(1,))
_ROUNDED_QUOTIENT = Pointwise(_quotient, 2, digits=(1,))
_FLOOR_QUOTIENT = Pointwise(_floor_quotient, 2, digits=(1,))
_LARGER, _SMALLER = Pointwise(larger, 2, wide=False), Pointwise(smaller, 2, wide=False)

ARITHMETIC: Mapping[str, Pointwise] = {
    **dict.fromkeys(("add.Tensor", "add.Scalar"), _SUM),
    **dict.fromkeys(("sub.Tensor", "sub.Scalar"), _DIFFERENCE),
    **dict.fromkeys(("rsub.Tensor", "rsub.Scalar"), Pointwise(_reversed_difference, 2, wide=False)),
    **dict.fromkeys(("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar"), _PRODUCT),
    **dict.fromkeys(("div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar"), _TRUE_QUOTIENT),
    **dict.fromkeys(("div.Tensor_mode", "div.Scalar_mode"), _ROUNDED_QUOTIENT),
    **dict.fromkeys(("floor_divide", "floor_divide.Scalar"), _FLOOR_QUOTIENT),
    **dict.fromkeys(("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"), Pointwise(_remainder, 2)),
    **dict.fromkeys(("fmod.Tensor", "fmod.Scalar"), Pointwise(_truncated_remainder, 2)),
    **dict.fromkeys(("maximum", "max.other"), _LARGER),
    **dict.fromkeys(("minimum", "min.other"), _SMALLER),
    **dict.fromkeys(("clamp", "clamp.Tensor"), Pointwise(_clamped, 3, wide=False)),
    **dict.fromkeys(("clamp_min", "clamp_min.Tensor"), Pointwise(_clamped, 2, wide=False)),
    **dict.fromkeys(("clamp_max", "clamp_max.Tensor"), Pointwise(_clamped_below, 2, wide=False)),
    "hardtanh": Pointwise(_hard_tanh, wide=False),
    "addcmul": Pointwise(_plus_product, 3),
    "addcdiv": Pointwise(_plus_quotient, 3),
    "lerp.Scalar": Pointwise(_interpolated, 3, digits=(2,)),
    "lerp.Tensor": Pointwise(_interpolated, 3),
    "neg": Pointwise(negate, wide=False),
    **dict.fromkeys(("abs", "absolute"), Pointwise(absolute, wide=False)),
}
"""By the name of the op in ATen."""
