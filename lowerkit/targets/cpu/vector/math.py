"""Transcendental functions on f32 vectors of any width (and on scalars), emitted as arith and math.fma ops.

Each function takes and returns a :class:`Value` whose element is f32. NaN gives NaN, infinities and signed zeros
follow C99, denormal inputs and results are exact to the stated error. Nothing calls the C library.

Error against the correctly rounded value, in units in the last place (ULP), the maximum that
``tests/kernels/cpu/test_vector_math.py`` measures over all exponents and dense sweeps of the interesting ranges::

    exp 1.0   exp2 0.9   expm1 1.5   log 0.9   log2 1.9   log10 2.1   log1p 1.6   erf 1.1   tanh 1.4
    sin 1.6   cos 1.6    atan 1.4    pow 0.6   rsqrt 1.5  (sqrt and division are the exact instructions)

Method: additive or multiplicative range reduction, then a polynomial in Horner form on ``math.fma``. The coefficients
are weighted minimax fits (Lawson iteration on Chebyshev nodes) of the formula beside them. erf follows N. Juffa's two
intervals; sin and cos of large arguments multiply by 192 bits of 2/pi (Payne and Hanek). The rounding to the nearest
integer adds 1.5 * 2^23, which leaves the integer in the low bits of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value
from lowerkit.targets.cpu.vector.blocks import (
    AVX512_LANES,
    as_f32,
    at_least,
    at_most,
    horner,
    magnitude,
    negate,
    power_of_two,
    round_to_integer,
    scale_by_power,
    scale_register,
    with_integer,
    with_sign,
)
from lowerkit.targets.cpu.vector.power import power
from lowerkit.targets.cpu.vector.trigonometry import atan, cos, sin

__all__ = [
    "FUNCTIONS",
    "atan",
    "cos",
    "erf",
    "exp",
    "exp2",
    "exp_for_bf16",
    "exp_normal",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "power",
    "rsqrt",
    "sin",
    "tanh",
]

_EXP = (0.5000000068, 0.1666666586, 0.04166629362, 0.008333497669, 0.001394475916, 0.0001979024863)
_EXP2 = (0.6931471807, 0.2402265107, 0.0555041036, 0.009618037405, 0.001333393808, 0.0001546700872, 1.519592888e-05)
_EXP2_FOR_BF16 = (0.999999261, 0.693121815, 0.240247448, 0.0559178603, 0.0095701017)
_LOG = (
    0.3333333574,
    -0.2499982026,
    0.1999959781,
    -0.1667957863,
    0.1430445462,
    -0.1219577398,
    0.1075426071,
    -0.1284507643,
    0.1200705231,
)
_TANH = (-0.3333328392, 0.1333149125, -0.05374349526, 0.020650579, -0.005717036561)
_ERF_SMALL = (1.28379166e-1, -3.76125336e-1, 1.12819925e-1, -2.67681349e-2, 4.99119423e-3, -5.96761703e-4)
_ERF_LARGE = (
    -1.28717512e-1,
    -6.34846687e-1,
    -1.06777877e-1,
    2.42546219e-2,
    -3.88396438e-3,
    3.83197126e-4,
    -1.72853470e-5,
)


def _exp_reduced(b: TextBuilder, x: Value) -> tuple[Value, Value]:
    """x = n ln2 + r with |r| <= ln2 / 2: returns (e^r - 1, n)."""
    n, integer = round_to_integer(b, x, 1.0 / math.log(2))
    r = b.fma(n, b.like(-0.693145752, x), x)
    r = b.fma(n, b.like(-1.42860677e-6, x), r)
    return b.fma(b.mul(r, r), horner(b, r, _EXP), r), integer


def exp(b: TextBuilder, x: Value) -> Value:
    """e^x."""
    x = at_least(b, at_most(b, x, 89.0), -104.0)
    fraction, n = _exp_reduced(b, x)
    power = b.add(fraction, b.like(1.0, x))
    if x.lanes == AVX512_LANES:
        return scale_register(b, power, b.cast("arith.sitofp", n, "f32"))
    return scale_by_power(b, power, n)


def exp_normal(b: TextBuilder, x: Value) -> Value:
    """e^x for x <= 88; below -87.3 the result is 0 rather than a denormal number (softmax, tails of erf)."""
    clamped = at_least(b, x, -87.3)
    fraction, n = _exp_reduced(b, clamped)
    value = b.mul(b.add(fraction, b.like(1.0, x)), power_of_two(b, n))
    return b.select(b.compare("olt", x, b.like(-87.3, x)), b.like(0.0, x), value)


def exp_for_bf16(b: TextBuilder, x: Value, *, bounded: bool = False) -> Value:
    """e^x with a relative error of 2^-17, for results that are rounded to bf16; 0 below e^-104.

    Args:
        b: where the ops go.
        x: a whole AVX-512 register.
        bounded: x is at most 88.
    """
    x = at_least(b, x if bounded else at_most(b, x, 150.0), -150.0)
    log2e = b.like(1.0 / math.log(2), x)
    n = b.unary("math.roundeven", b.mul(x, log2e))
    power = horner(b, b.fma(x, log2e, negate(b, n)), _EXP2_FOR_BF16)
    return scale_register(b, power, n)


def exp2(b: TextBuilder, x: Value) -> Value:
    """2^x."""
    x = at_least(b, at_most(b, x, 129.0), -151.0)
    n, integer = round_to_integer(b, x, 1.0)
    r = b.sub(x, n)
    return scale_by_power(b, b.fma(r, horner(b, r, _EXP2), b.like(1.0, x)), integer)


def expm1(b: TextBuilder, x: Value) -> Value:
    """e^x - 1 without cancellation: 2^n (e^r - 1) + (2^n - 1), at half scale so that 2^128 is never formed."""
    clamped = at_least(b, at_most(b, x, 89.0), -20.0)
    fraction, n = _exp_reduced(b, clamped)
    half = power_of_two(b, with_integer(b, "subi", n, 1))
    result = b.fma(half, fraction, b.sub(half, b.like(0.5, x)))
    result = b.add(result, result)
    # e^r - 1 is exact enough to return as it is when n = 0, and keeps denormals and -0.
    small = b.select(b.compare("oeq", x, b.like(0.0, x)), x, fraction)
    return b.select(b.compare("eq", n, b.like(0, n)), small, result)


def _split(b: TextBuilder, x: Value) -> tuple[Value, Value]:
    """x = m 2^e with m in [2/3, 4/3), for positive normal x: (m, e as i32)."""
    bits = b.bitcast(x, "i32")
    exponent = with_integer(b, "shrsi", with_integer(b, "subi", bits, 0x3F2AAAAB), 23)
    return b.bitcast(b.sub(bits, with_integer(b, "shli", exponent, 23)), "f32"), exponent


def _log_mantissa(b: TextBuilder, f: Value) -> Value:
    """log(1 + f) for |f| <= 1/3."""
    correction = b.fma(horner(b, f, _LOG), f, b.like(-0.5, f))
    return b.fma(b.mul(f, f), correction, f)


def _log_edges(b: TextBuilder, x: Value, zero_at: float, finite: Value) -> Value:
    """Puts -inf at the pole, NaN left of it, and infinity and NaN themselves."""
    pole = b.like(zero_at, x)
    result = b.select(b.compare("oeq", x, pole), b.like(-math.inf, x), finite)
    result = b.select(b.compare("olt", x, pole), b.like(math.nan, x), result)
    return b.select(b.compare("ult", x, b.like(math.inf, x)), b.select(b.compare("uno", x, x), x, result), x)


def _log_parts(b: TextBuilder, x: Value) -> tuple[Value, Value]:
    """(log of the mantissa, exponent as f32), denormals scaled up first."""
    tiny = b.compare("olt", x, b.like(2.0**-126, x))
    mantissa, exponent = _split(b, b.select(tiny, b.mul(x, b.like(2.0**23, x)), x))
    shift = b.select(tiny, b.like(23, exponent), b.like(0, exponent))
    number = b.cast("arith.sitofp", b.sub(exponent, shift), "f32")
    return _log_mantissa(b, b.sub(mantissa, b.like(1.0, x))), number


def log(b: TextBuilder, x: Value) -> Value:
    """Natural logarithm."""
    mantissa, exponent = _log_parts(b, x)
    return _log_edges(b, x, 0.0, b.fma(exponent, b.like(math.log(2), x), mantissa))


def _log_base(b: TextBuilder, x: Value, base: float) -> Value:
    mantissa, exponent = _log_parts(b, x)
    # 1 / ln(base) in two parts, and the exponent's multiple in two parts, keep the product to about one ULP.
    scale = as_f32(1.0 / math.log(base))
    step = as_f32(math.log(2) / math.log(base))
    low = b.mul(mantissa, b.like(1.0 / math.log(base) - scale, x))
    low = b.fma(exponent, b.like(math.log(2) / math.log(base) - step, x), low)
    result = b.fma(exponent, b.like(step, x), b.fma(mantissa, b.like(scale, x), low))
    return _log_edges(b, x, 0.0, result)


def log2(b: TextBuilder, x: Value) -> Value:
    """Logarithm to base 2."""
    return _log_base(b, x, 2.0)


def log10(b: TextBuilder, x: Value) -> Value:
    """Logarithm to base 10."""
    return _log_base(b, x, 10.0)


def log1p(b: TextBuilder, x: Value) -> Value:
    """log(1 + x); what 1 + x rounds away is added to the mantissa."""
    u = b.add(x, b.like(1.0, x))
    lost = b.sub(x, b.sub(u, b.like(1.0, x)))
    mantissa, exponent = _split(b, u)
    # Beyond 2^64 nothing is lost that counts; the limit keeps 2^-exponent a number.
    scale = power_of_two(b, b.sub(b.like(0, exponent), b.minimum(exponent, b.like(64, exponent))))
    lost = b.select(b.compare("olt", x, b.like(2.0**30, x)), lost, b.like(0.0, x))
    f = b.fma(lost, scale, b.sub(mantissa, b.like(1.0, x)))
    number = b.cast("arith.sitofp", exponent, "f32")
    result = b.fma(number, b.like(math.log(2), x), _log_mantissa(b, f))
    result = b.select(b.compare("oeq", x, b.like(0.0, x)), x, result)
    return _log_edges(b, x, -1.0, result)


def erf(b: TextBuilder, x: Value) -> Value:
    """Gauss error function: x + x P(x^2) below 0.93, else 1 - e^Q(|x|)."""
    square = b.mul(x, x)
    small = b.fma(horner(b, square, _ERF_SMALL), x, x)
    t = at_most(b, magnitude(b, x), 4.0)
    exponent = b.fma(horner(b, t, _ERF_LARGE), t, negate(b, t))
    fraction, n = _exp_reduced(b, exponent)
    tail = b.mul(b.add(fraction, b.like(1.0, x)), power_of_two(b, n))
    large = with_sign(b, b.sub(b.like(1.0, x), tail), x)
    return b.select(b.compare("ogt", t, b.like(0.927734375, x)), large, small)


def tanh(b: TextBuilder, x: Value) -> Value:
    """x + x^3 P(x^2) below 0.625, else 1 - 2 / (e^2|x| + 1)."""
    square = b.mul(x, x)
    small = b.fma(b.mul(horner(b, square, _TANH), square), x, x)
    t = at_most(b, magnitude(b, x), 10.0)
    fraction, n = _exp_reduced(b, b.add(t, t))
    one = b.like(1.0, x)
    power_ = b.mul(b.add(fraction, one), power_of_two(b, n))
    large = b.sub(one, b.div(b.like(2.0, x), b.add(power_, one)))
    return with_sign(b, b.select(b.compare("ogt", t, b.like(0.625, x)), large, small), x)


def rsqrt(b: TextBuilder, x: Value) -> Value:
    """1 / sqrt(x)."""
    return b.div(b.like(1.0, x), b.unary("math.sqrt", x))


def _sqrt(b: TextBuilder, x: Value) -> Value:
    return b.unary("math.sqrt", x)


FUNCTIONS: dict[str, Callable[[TextBuilder, Value], Value]] = {
    "math.exp": exp,
    "math.exp2": exp2,
    "math.expm1": expm1,
    "math.log": log,
    "math.log2": log2,
    "math.log10": log10,
    "math.log1p": log1p,
    "math.erf": erf,
    "math.tanh": tanh,
    "math.sin": sin,
    "math.cos": cos,
    "math.atan": atan,
    "math.rsqrt": rsqrt,
    "math.sqrt": _sqrt,
}
"""Functions of one operand by the name of the op that they implement."""
