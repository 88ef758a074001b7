"""The remainder of C's ``fmod`` on f32 vectors, exact for every pair of numbers; see ``math.py`` for conventions.

Method: long division in f64 by digits of 50 bits, from the largest quotient that f32 has (277 bits) down. A digit is
estimated with the reciprocal of the divisor and is off by at most one, either way; ``remainder - digit * divisor`` is
exact in one ``fma``, and what is left is moved by one divisor where the digit was off.
"""

from __future__ import annotations

import math

from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value
from lowerkit.targets.cpu.vector.blocks import magnitude, negate, with_sign

__all__ = ["remainder"]

_DIGIT_BITS = 50
_DIGITS = 6
"""Of 50 bits: 300 are more than the 277 from the smallest f32 to the largest."""


def remainder(b: TextBuilder, x: Value, y: Value) -> Value:
    """``x - trunc(x / y) * y`` with the sign of x; NaN for an infinite x or a y of zero, x for an infinite y."""
    rest, divisor = b.widen(magnitude(b, x), "f64"), b.widen(magnitude(b, y), "f64")
    reciprocal = b.div(b.like(1.0, divisor), divisor)
    zero = b.like(0.0, rest)
    for digit in reversed(range(_DIGITS)):
        scale = math.ldexp(1.0, _DIGIT_BITS * digit)
        scaled = b.mul(divisor, b.like(scale, divisor)) if digit else divisor
        estimate = b.mul(rest, b.mul(reciprocal, b.like(1.0 / scale, rest)) if digit else reciprocal)
        rest = b.fma(negate(b, b.unary("math.trunc", estimate)), scaled, rest)
        rest = b.select(b.compare("olt", rest, zero), b.add(rest, scaled), rest)
        rest = b.select(b.compare("oge", rest, scaled), b.sub(rest, scaled), rest)
    found = with_sign(b, b.cast("arith.truncf", rest, "f32"), x)
    infinite = b.compare("oeq", magnitude(b, y), b.like(math.inf, y))
    finite = b.compare("olt", magnitude(b, x), b.like(math.inf, x))
    return b.select(b.binary("arith.andi", infinite, finite), x, found)
