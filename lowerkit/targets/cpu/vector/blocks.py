"""Building blocks of the vector functions: polynomials, clamps that keep NaN, and exact scaling by powers of two."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value

__all__ = [
    "AVX512_LANES",
    "as_f32",
    "at_least",
    "at_most",
    "horner",
    "magnitude",
    "negate",
    "power_of_two",
    "round_to_integer",
    "scale_by_power",
    "scale_register",
    "with_integer",
    "with_sign",
]

AVX512_LANES = 16
"""Lanes of f32 that only AVX-512 has in one register."""
_ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the sum


def as_f32(value: float) -> float:
    """``value`` rounded to f32."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def horner(b: TextBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """``c0 + c1 x + c2 x^2 + ...``."""
    result = b.like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = b.fma(result, x, b.like(coefficient, x))
    return result


def at_most(b: TextBuilder, x: Value, limit: float) -> Value:
    """min(x, limit), NaN kept: one ``minps`` with the limit first."""
    bound = b.like(limit, x)
    return b.select(b.compare("olt", bound, x), bound, x)


def at_least(b: TextBuilder, x: Value, limit: float) -> Value:
    """max(x, limit), NaN kept."""
    bound = b.like(limit, x)
    return b.select(b.compare("ogt", bound, x), bound, x)


def negate(b: TextBuilder, x: Value) -> Value:
    """-x."""
    return b.unary("arith.negf", x)


def magnitude(b: TextBuilder, x: Value) -> Value:
    """|x|."""
    return b.unary("math.absf", x)


def with_sign(b: TextBuilder, size: Value, sign: Value) -> Value:
    """``size`` with the sign of ``sign``."""
    return b.binary("math.copysign", size, sign)


def with_integer(b: TextBuilder, op: str, a: Value, count: int) -> Value:
    """``arith.<op>`` of an integer vector and a constant."""
    return b.binary(f"arith.{op}", a, b.like(count, a))


def power_of_two(b: TextBuilder, exponent: Value) -> Value:
    """2^exponent for an ``i32`` exponent in [-126, 127]."""
    return b.bitcast(with_integer(b, "shli", with_integer(b, "addi", exponent, 127), 23), "f32")


def scale_by_power(b: TextBuilder, x: Value, exponent: Value) -> Value:
    """x * 2^exponent in two exact steps (the product alone may leave the range of one factor)."""
    half = with_integer(b, "shrsi", exponent, 1)
    rest = b.sub(exponent, half)
    return b.mul(b.mul(x, power_of_two(b, half)), power_of_two(b, rest))


def scale_register(b: TextBuilder, x: Value, exponent: Value) -> Value:
    """x * 2^exponent, both f32 and a whole AVX-512 register; the exponent is an integer of any size: ``vscalefps``."""
    assert x.lanes == AVX512_LANES, "whole registers"
    mask, rounding = b.op("arith.constant -1 : i16", "i16"), b.op("arith.constant 4 : i32", "i32")
    return b.op(
        f'llvm.call_intrinsic "llvm.x86.avx512.mask.scalef.ps.512"({x}, {exponent}, {x}, {mask}, {rounding}) : '
        f"({x.type}, {x.type}, {x.type}, i16, i32) -> {x.type}",
        x.type,
    )


def round_to_integer(b: TextBuilder, x: Value, factor: float) -> tuple[Value, Value]:
    """Nearest integer of x * factor, as f32 and as i32."""
    shifted = b.fma(x, b.like(factor, x), b.like(_ROUND, x))
    integer = b.sub(b.bitcast(shifted, "i32"), b.constant(0x4B400000, "i32", x.lanes))
    return b.sub(shifted, b.like(_ROUND, x)), integer
