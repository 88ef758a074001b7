"""Functions of one number, powers, and functions that read the sign or the size of a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lowerkit.mlir import math
from lowerkit.passes.raising.core.pointwise import Pointwise
from lowerkit.passes.raising.core.scalars import (
    Scalar,
    applied,
    cast,
    compare_number,
    constant,
    divide,
    like,
    multiply,
    subtract,
    whole_part,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import LOW_PRECISION_FLOATS, RefusalError

_WHOLE_IN_F32 = 2**24
"""Up to here f32 has every integer."""

_ROUNDED_AT_EACH_STEP = (3, -2)
"""Powers of bf16, not of f16, whose products PyTorch rounds one by one."""


def _function(op: Callable[..., Any]) -> Pointwise:
    return Pointwise(lambda value: applied(op, value))


def _rounding(op: Callable[..., Any]) -> Pointwise:
    return Pointwise(lambda value: applied(op, value) if value.is_float else value, wide=False)


def _fraction(value: Scalar) -> Scalar:
    return subtract(value, whole_part(value))


def sign(value: Scalar) -> Scalar:
    """``(x > 0) - (x < 0)``, as in PyTorch: 0 for NaN."""
    if value.is_bool:
        return value
    above = cast(compare_number("gt", value, 0), value.dtype)
    if value.is_unsigned:
        return above
    return subtract(above, cast(compare_number("lt", value, 0), value.dtype))


def _reciprocal(value: Scalar) -> Scalar:
    return divide(like(1, value), value)


def _square(value: Scalar) -> Scalar:
    return multiply(value, value)


def _reciprocal_square(value: Scalar) -> Scalar:
    return _reciprocal(_square(value))


def _cube(value: Scalar) -> Scalar:
    return multiply(_square(value), value)


def _root(value: Scalar) -> Scalar:
    return applied(math.SqrtOp, value)


def _reciprocal_root(value: Scalar) -> Scalar:
    return applied(math.RsqrtOp, value)


_SPECIAL_POWERS: dict[float, Callable[[Scalar], Scalar]] = {
    0: lambda value: like(1, value),
    1: lambda value: value,
    2: _square,
    3: _cube,
    -1: _reciprocal,
    -2: _reciprocal_square,
    0.5: _root,
    -0.5: _reciprocal_root,
}
"""The exponents, as numbers, for which PyTorch computes no power."""


def power(base: Scalar, exponent: Scalar) -> Scalar:
    """The one power: small exponents as PyTorch computes them, whole powers of integers, else the function."""
    number = exponent.number
    if not base.is_float:
        return _whole_power(base, number)
    if base.dtype == "f16" and number in (0.5, -0.5):  # eager has no root of these
        return applied(math.PowFOp, cast(base, "f32"), constant(number, "f32"))
    if base.dtype in LOW_PRECISION_FLOATS and not (base.dtype == "bf16" and number in _ROUNDED_AT_EACH_STEP):
        return power(cast(base, "f32"), cast(exponent, "f32") if number is None else constant(number, "f32"))
    if number is None:
        return applied(math.PowFOp, base, exponent)
    if number in _SPECIAL_POWERS:
        return _SPECIAL_POWERS[number](base)
    if base.dtype == "f32" and abs(number) > _WHOLE_IN_F32:  # rounded, odd would become even
        return applied(math.PowFOp, cast(base, "f64"), constant(number, "f64"))
    return applied(math.PowFOp, base, cast(exponent, base.dtype))


def _whole_power(base: Scalar, exponent: float | None) -> Scalar:
    """Products of integers by squaring: they wrap around as eager's do."""
    if exponent is None or exponent < 0:
        raise RefusalError(f"a power of {base.dtype} by {'a tensor' if exponent is None else exponent}")
    result, square, left = like(1, base), base, int(exponent)
    while left:
        result = multiply(result, square) if left & 1 else result
        left >>= 1
        square = multiply(square, square) if left else square
    return result


_FUNCTIONS = {
    "sqrt": math.SqrtOp,
    "rsqrt": math.RsqrtOp,
    "exp": math.ExpOp,
    "exp2": math.Exp2Op,
    "expm1": math.ExpM1Op,
    "log": math.LogOp,
    "log1p": math.Log1pOp,
    "log2": math.Log2Op,
    "log10": math.Log10Op,
    "erf": math.ErfOp,
    "sin": math.SinOp,
    "cos": math.CosOp,
    "tan": math.TanOp,
    "sinh": math.SinhOp,
    "cosh": math.CoshOp,
    "tanh": math.TanhOp,
    "asin": math.AsinOp,
    "acos": math.AcosOp,
    "atan": math.AtanOp,
    "asinh": math.AsinhOp,
    "acosh": math.AcoshOp,
    "atanh": math.AtanhOp,
    "special_expm1": math.ExpM1Op,
}
_ROUNDINGS = {"floor": math.FloorOp, "ceil": math.CeilOp, "round": math.RoundEvenOp}

FUNCTIONS: Mapping[str, Pointwise] = {
    **{name: _function(op) for name, op in _FUNCTIONS.items()},
    **{name: _rounding(op) for name, op in _ROUNDINGS.items()},
    **dict.fromkeys(("trunc", "fix"), Pointwise(whole_part, wide=False)),
    "frac": Pointwise(_fraction, wide=False),
    **dict.fromkeys(("sign", "sgn"), Pointwise(sign, wide=False)),
    "reciprocal": Pointwise(_reciprocal, wide=False),
    "square": Pointwise(_square, wide=False),
    **dict.fromkeys(("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar"), Pointwise(power, 2, wide=False)),
    **{f"float_power.{form}": Pointwise(power, 2) for form in ("Tensor_Tensor", "Tensor_Scalar", "Scalar")},
    "atan2": Pointwise(lambda left, right: applied(math.Atan2Op, left, right), 2),
}
"""By the name of the op in ATen."""
