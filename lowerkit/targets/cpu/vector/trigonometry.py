"""sin, cos and atan of f32 vectors; see ``math.py`` for errors and conventions."""

from __future__ import annotations

import math

from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value
from lowerkit.targets.cpu.vector.blocks import horner, magnitude, negate, round_to_integer, with_integer, with_sign

__all__ = ["atan", "cos", "sin"]

_SIN = (-0.1666666664, 0.008333329267, -0.0001983929612, 2.717939834e-06)
_COS = (0.04166666662, -0.00138888836, 2.479947861e-05, -2.720678727e-07)
_ATAN = (
    -0.3333330186,
    0.1999863855,
    -0.142652446,
    0.1095757186,
    -0.08419445984,
    0.05823432039,
    -0.03145546941,
    0.01106431519,
    -0.001827184686,
)
_TWO_OVER_PI = (0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410)


def atan(b: TextBuilder, x: Value) -> Value:
    """Arc tangent: of 1 / |x| and the complement to pi / 2 above 1."""
    t = magnitude(b, x)
    inverted = b.compare("ogt", t, b.like(1.0, x))
    z = b.select(inverted, b.div(b.like(1.0, x), t), t)
    square = b.mul(z, z)
    angle = b.fma(b.mul(horner(b, square, _ATAN), square), z, z)
    complement = b.sub(b.like(math.pi / 2, x), b.sub(angle, b.like(-4.371139e-8, x)))
    return with_sign(b, b.select(inverted, complement, angle), x)


def _quadrant(b: TextBuilder, x: Value) -> tuple[Value, Value]:
    """x = q pi/2 + r with |r| <= pi/4: (r, q as i32); exact enough for every finite x."""
    n, quadrant = round_to_integer(b, x, 2.0 / math.pi)
    r = b.fma(n, b.like(-1.57079601, x), x)
    r = b.fma(n, b.like(-3.13916473e-07, x), r)
    r = b.fma(n, b.like(-5.39030253e-15, x), r)
    large = b.compare("ogt", magnitude(b, x), b.like(71476.0625, x))
    any_large = b.reduce("or", large)
    result, integer = b.fresh(r.type), b.fresh(quadrant.type)
    b.line(f"{result}, {integer} = scf.if {any_large} -> ({r.type}, {quadrant.type}) {{")
    with b.block("// some argument is large: multiply by enough bits of 2/pi", "} else {"):
        exact, exact_quadrant = _payne_hanek(b, x)
        b.yield_([b.select(large, exact, r), b.select(large, exact_quadrant, quadrant)])
    b.yield_([r, quadrant])
    b.line("}")
    return result, integer


def _payne_hanek(b: TextBuilder, x: Value) -> tuple[Value, Value]:
    """The reduction of :func:`_quadrant` by a 96-bit window of 2/pi chosen by the exponent; for |x| >= 1."""
    lanes = x.lanes
    bits = b.bitcast(x, "i32")
    exponent = with_integer(b, "subi", with_integer(b, "andi", with_integer(b, "shrui", bits, 23), 0xFF), 126)
    mantissa = with_integer(b, "ori", with_integer(b, "shli", bits, 8), -(2**31))
    word = with_integer(b, "shrsi", exponent, 5)
    shift = b.cast("arith.extui", with_integer(b, "andi", exponent, 31), "i64")

    def table(distance: int) -> Value:
        """Word ``word + distance`` of 2/pi, zero outside, in the low half of an i64."""
        result = b.constant(0, "i64", lanes)
        for index in range(5):
            place = index + distance
            if 0 <= place < len(_TWO_OVER_PI):
                chosen = b.compare("eq", word, b.like(index, word))
                result = b.select(chosen, b.constant(_TWO_OVER_PI[place], "i64", lanes), result)
        return result

    words = [table(distance) for distance in (-1, 0, 1, 2)]

    def window(high: Value, low: Value) -> Value:
        both = b.binary("arith.ori", with_integer(b, "shli", high, 32), low)
        return with_integer(b, "shrui", b.binary("arith.shli", both, shift), 32)

    high, middle, low = (window(words[i], words[i + 1]) for i in range(3))
    factor = b.cast("arith.extui", mantissa, "i64")
    product = with_integer(b, "shrui", b.mul(factor, low), 32)
    product = b.add(b.mul(factor, middle), product)
    product = b.add(with_integer(b, "shli", b.mul(factor, high), 32), product)
    quadrant = b.cast("arith.trunci", with_integer(b, "shrui", product, 62), "i32")
    # The rest, a signed fraction of a quadrant: round to the nearest quadrant by sign-extending bit 61.
    rest = with_integer(b, "shrsi", with_integer(b, "shli", product, 2), 2)
    carry = b.cast("arith.trunci", with_integer(b, "andi", with_integer(b, "shrui", product, 61), 1), "i32")
    quadrant = b.add(quadrant, carry)
    angle = b.mul(b.cast("arith.sitofp", rest, "f64"), b.constant(math.pi / 2 * 2.0**-62, "f64", lanes))
    r = b.cast("arith.truncf", angle, "f32")
    negative = b.compare("olt", x, b.like(0.0, x))
    r = b.select(negative, negate(b, r), r)
    quadrant = b.select(negative, b.sub(b.like(0, quadrant), quadrant), quadrant)
    finite = b.compare("olt", magnitude(b, x), b.like(math.inf, x))
    return b.select(finite, r, b.like(math.nan, x)), quadrant


def _sine_or_cosine(b: TextBuilder, x: Value, quarter_turns: int) -> Value:
    r, quadrant = _quadrant(b, x)
    quadrant = with_integer(b, "addi", quadrant, quarter_turns)
    square = b.mul(r, r)
    sine = b.fma(b.mul(horner(b, square, _SIN), square), r, r)
    cosine = b.fma(b.mul(horner(b, square, _COS), square), square, b.fma(square, b.like(-0.5, x), b.like(1.0, x)))
    odd = b.compare("ne", with_integer(b, "andi", quadrant, 1), b.like(0, quadrant))
    value = b.select(odd, cosine, sine)
    sign = with_integer(b, "shli", with_integer(b, "andi", quadrant, 2), 30)
    return b.bitcast(b.binary("arith.xori", b.bitcast(value, "i32"), sign), "f32")


def sin(b: TextBuilder, x: Value) -> Value:
    """Sine of any argument."""
    return b.select(b.compare("oeq", x, b.like(0.0, x)), x, _sine_or_cosine(b, x, 0))


def cos(b: TextBuilder, x: Value) -> Value:
    """Cosine of any argument."""
    return _sine_or_cosine(b, x, 1)
