"""x^y of f32 vectors through f64; see ``math.py`` for errors and conventions."""

from __future__ import annotations

import math

from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value
from lowerkit.targets.cpu.vector.blocks import at_least, at_most, horner, magnitude, with_integer, with_sign

__all__ = ["power"]

_LOG2_F64 = (
    2.8853900817779268,
    0.9617966939259756,
    0.5770780163555854,
    0.41219858311113394,
    0.32059898614,
    0.2622951,
    0.22964,
)
_EXP2_F64 = tuple(math.log(2) ** n / math.factorial(n) for n in range(1, 12))


def power(b: TextBuilder, x: Value, y: Value) -> Value:
    """x^y through log2 and exp2 in f64, with the special cases of C99 ``pow``."""
    lanes = x.lanes
    base = b.widen(magnitude(b, x), "f64")
    exponent = b.widen(y, "f64")
    scaled = b.mul(exponent, _log2_f64(b, base))
    result_size = b.cast("arith.truncf", _exp2_f64(b, scaled), "f32")
    zero, one, infinity = b.like(0.0, x), b.like(1.0, x), b.like(math.inf, x)
    size = magnitude(b, x)
    rising = b.compare("ogt", y, zero)
    at_zero, at_infinity = b.compare("oeq", size, zero), b.compare("oeq", size, infinity)
    result_size = b.select(at_zero, b.select(rising, zero, infinity), result_size)
    result_size = b.select(at_infinity, b.select(rising, infinity, zero), result_size)
    result_size = b.select(b.compare("oeq", size, one), one, result_size)
    whole = b.compare("oeq", b.unary("math.floor", y), y)
    half = b.mul(y, b.like(0.5, y))
    even = b.compare("oeq", b.unary("math.floor", half), half)
    odd = b.binary("arith.andi", whole, b.binary("arith.xori", even, b.constant(1, "i1", lanes)))
    signed = b.select(odd, with_sign(b, result_size, x), result_size)
    undefined = b.binary(
        "arith.andi", b.compare("olt", x, zero), b.binary("arith.xori", whole, b.constant(1, "i1", lanes))
    )
    undefined = b.binary("arith.andi", undefined, b.compare("one", x, b.like(-math.inf, x)))
    result = b.select(undefined, b.like(math.nan, x), signed)
    unordered = b.binary("arith.ori", b.compare("uno", x, x), b.compare("uno", y, y))
    result = b.select(unordered, b.like(math.nan, x), result)
    trivial = b.binary("arith.ori", b.compare("oeq", y, zero), b.compare("oeq", x, one))
    return b.select(trivial, one, result)


def _log2_f64(b: TextBuilder, x: Value) -> Value:
    """log2 of positive normal f64 with about 50 correct bits: exponent + t L(t^2), t = (m - 1) / (m + 1)."""
    bits = b.bitcast(x, "i64")
    # Mantissa into [sqrt(1/2), sqrt(2)); the exponent moves through the mantissa of 2^52 to become a float.
    moved = with_integer(b, "addi", bits, 0x3FF0000000000000 - 0x3FE6A09E667F3BCD)
    exponent = with_integer(b, "shrui", moved, 52)
    number = b.sub(
        b.bitcast(with_integer(b, "ori", exponent, 0x4330000000000000), "f64"),
        b.constant(2.0**52 + 1023, "f64", x.lanes),
    )
    mantissa_bits = with_integer(b, "addi", with_integer(b, "andi", moved, 0x000FFFFFFFFFFFFF), 0x3FE6A09E667F3BCD)
    mantissa = b.bitcast(mantissa_bits, "f64")
    one = b.like(1.0, x)
    t = b.div(b.sub(mantissa, one), b.add(mantissa, one))
    return b.fma(t, horner(b, b.mul(t, t), _LOG2_F64), number)


def _exp2_f64(b: TextBuilder, x: Value) -> Value:
    x = at_least(b, at_most(b, x, 300.0), -300.0)
    n = b.unary("math.roundeven", x)
    r = b.sub(x, n)
    biased = b.add(n, b.constant(2.0**52 + 1023, "f64", x.lanes))
    scale = b.bitcast(with_integer(b, "shli", b.bitcast(biased, "i64"), 52), "f64")
    return b.mul(b.fma(r, horner(b, r, _EXP2_F64), b.like(1.0, x)), scale)
