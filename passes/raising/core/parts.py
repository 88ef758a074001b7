"""Signs and special values of floats, extremes that pass over NaN, and sums of logarithms."""

from __future__ import annotations

import math as python_math
from collections.abc import Callable, Mapping
from typing import Any

from lowerkit.mlir import arith, math
from lowerkit.passes.raising.core.pointwise import Pointwise
from lowerkit.passes.raising.core.promotion import WIDTHS
from lowerkit.passes.raising.core.scalars import (
    Scalar,
    absolute,
    add,
    applied,
    both,
    builtin_element,
    cast,
    compare,
    compare_number,
    constant,
    divide,
    is_nan,
    larger,
    like,
    multiply,
    negate,
    scaled,
    select,
    smaller,
    subtract,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import DTYPE_OF_CODE, FLOATS, TORCH_DTYPE_CODES, RefusalError

_LARGEST = {"f16": 65504.0, "bf16": 0xFF * 2.0**120, "f32": 0xFFFFFF * 2.0**104, "f64": 0x1FFFFFFFFFFFFF * 2.0**971}
"""The largest finite float."""


def _number_of_two(choose: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Scalar, Scalar], Scalar]:
    """fmax, fmin: a number rather than a NaN."""

    def body(left: Scalar, right: Scalar) -> Scalar:
        if not left.is_float:
            return choose(left, right)
        return select(is_nan(left), right, select(is_nan(right), left, choose(left, right)))

    return body


def _log_add(power: Callable[..., Any], scale: float) -> Callable[[Scalar, Scalar], Scalar]:
    """``larger + log1p(exp(-distance))``; of equal infinities, themselves."""

    def body(left: Scalar, right: Scalar) -> Scalar:
        distance = absolute(subtract(left, right))
        rest = scaled(applied(math.Log1pOp, applied(power, negate(distance))), scale)
        infinite = both(compare_number("eq", absolute(left), python_math.inf), compare("eq", left, right))
        return select(infinite, left, add(larger(left, right), rest))

    return body


def _sign_bit(value: Scalar) -> Scalar:
    """Whether the sign is set, that of a zero or a NaN too."""
    if not value.is_float:
        return constant(0, "i1") if value.is_unsigned else compare_number("lt", value, 0)
    return compare_number("lt", _bits(value, TORCH_DTYPE_CODES[f"si{value.width}"]), 0)


def _bits(value: Scalar, code: int) -> Scalar:
    """view.dtype: the bits as another type of the same width; a bool is a byte, 0 or 1."""
    dtype = DTYPE_OF_CODE[code]
    if "i1" in (value.dtype, dtype) and {value.width, WIDTHS[dtype]} <= {1, 8}:
        return cast(value, dtype)
    if value.width != WIDTHS[dtype]:
        raise RefusalError(f"{value.dtype} and {dtype} have different widths")
    if value.is_float or dtype in FLOATS:
        return Scalar(arith.BitcastOp(builtin_element(dtype), value.value).result, dtype)
    return Scalar(value.value, dtype)


def _without_nan(
    value: Scalar, nan: float | None = None, above: float | None = None, below: float | None = None
) -> Scalar:
    """nan_to_num: each replacement by what stood there, not by another replacement; integers have none of the three."""
    if not value.is_float:
        return value
    largest = _LARGEST[value.dtype]
    top, bottom = like(largest if above is None else above, value), like(-largest if below is None else below, value)
    finite = select(
        compare_number("eq", value, python_math.inf),
        top,
        select(compare_number("eq", value, -python_math.inf), bottom, value),
    )
    return select(is_nan(value), like(nan or 0.0, value), finite)


def _rounded(value: Scalar, decimals: int) -> Scalar:
    """Rounded to a decimal place, or to a power of ten: by a product and a quotient, in PyTorch's order."""
    if not value.is_float:
        raise RefusalError(f"{value.dtype} has no decimals")
    power = like(10.0 ** abs(decimals), value)
    if decimals == 0:
        return applied(math.RoundEvenOp, value)
    if decimals < 0:
        return multiply(applied(math.RoundEvenOp, divide(value, power)), power)
    return divide(applied(math.RoundEvenOp, multiply(value, power)), power)


def _step(value: Scalar, at_zero: Scalar) -> Scalar:
    """heaviside: 1 above 0 and 0 below; 0 for NaN."""
    return select(compare_number("eq", value, 0), at_zero, cast(compare_number("gt", value, 0), value.dtype))


def _logit(value: Scalar, epsilon: float | None = None) -> Scalar:
    """``log(x / (1 - x))``, of a number that is kept from 0 and 1."""
    one = like(1, value)
    if epsilon is not None:
        low = like(epsilon, value)
        high = subtract(one, low)
        value = select(compare("lt", value, low), low, select(compare("gt", value, high), high, value))
    return applied(math.LogOp, divide(value, subtract(one, value)))


PARTS: Mapping[str, Pointwise] = {
    "fmax": Pointwise(_number_of_two(larger), 2, wide=False),
    "fmin": Pointwise(_number_of_two(smaller), 2, wide=False),
    "logaddexp": Pointwise(_log_add(math.ExpOp, 1.0), 2),
    "logaddexp2": Pointwise(_log_add(math.Exp2Op, 1 / python_math.log(2)), 2),
    "copysign.Tensor": Pointwise(lambda value, sign: applied(math.CopySignOp, value, sign), 2),
    "view.dtype": Pointwise(_bits, types="own"),
    "signbit": Pointwise(_sign_bit, types="own"),
    "nan_to_num": Pointwise(_without_nan, wide=False),
    "round.decimals": Pointwise(_rounded),
    "heaviside": Pointwise(_step, 2, wide=False),
    "logit": Pointwise(_logit),
    "rad2deg": Pointwise(lambda value: scaled(value, 180 / python_math.pi)),
    "deg2rad": Pointwise(lambda value: scaled(value, python_math.pi / 180)),
}
"""By the name of the op in ATen."""
