"""The numbers of a fragment as a tensor core sees them: values, and the exponents that they are aligned by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.simulated.rounding import from_bf16
from lowerkit.runtimes.cuda.simulated.scalar_types import Array

# The exponent of subnormal values: their significands are less than 1.
_LEAST: Mapping[str, int] = {"bf16": -126, "tf32": -126, "f32": -126, "f16": -14, "e5m2": -14, "e4m3": -6}
OF_ZERO = -8192  # the exponent of a zero: no other one, nor a sum with another one, is as low
_EXPONENTS = np.uint32(0x7F800000)
_TF32 = np.uint32(0xFFFFE000)


@dataclass(frozen=True)
class Terms:
    """Numbers.

    Attributes:
        values: f32.
        exponents: int16 of the same shape, so that each value is 2**exponent times a significand of less than 2.
        finite: whether all are.
    """

    values: Array
    exponents: Array
    finite: bool

    def at(self, part: slice) -> Terms:
        """Returns some of the numbers along the first axis."""
        return Terms(self.values[part], self.exponents[part], self.finite)


def terms_of(bits: Array, kind: str) -> Terms:
    """Returns numbers of ``kind`` (f16, bf16, tf32, e4m3, e5m2, f32) given as unsigned bits of the size of the type.

    The lowest 13 bits of a tf32 are not looked at.
    """
    return terms_of_values(values_of(bits, kind), kind)


def values_of(bits: Array, kind: str) -> Array:
    """Returns the values of bits of a type as f32."""
    if kind == "bf16":
        return from_bf16(bits)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "tf32":
        return (bits & _TF32).view(np.float32)
    if kind == "f32":
        return bits.view(np.float32)
    return _OF_EIGHT_BITS[kind][bits]


def terms_of_values(values: Array, kind: str) -> Terms:
    """Returns numbers given as f32 that are values of ``kind``."""
    exponents = ((values.view(np.uint32) & _EXPONENTS) >> np.uint32(23)).astype(np.int16)
    finite = not (exponents == 255).any()
    exponents -= np.int16(127)
    np.maximum(exponents, np.int16(_LEAST[kind]), out=exponents)
    exponents[values == 0] = OF_ZERO
    return Terms(values, exponents, finite)


def _table(exponent_bits: int, has_infinity: bool) -> Array:
    """Returns the values of all 256 numbers of a type of 8 bits."""
    codes = np.arange(256)
    mantissa_bits = 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    field = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    significand = mantissa / (1 << mantissa_bits) + (field > 0)
    values = np.where(codes >> 7, -1.0, 1.0) * significand * 2.0 ** (np.maximum(field, 1) - bias)
    top = field == (1 << exponent_bits) - 1
    if has_infinity:
        values[top & (mantissa == 0)] = np.copysign(np.inf, values[top & (mantissa == 0)])
        values[top & (mantissa != 0)] = np.nan
    else:
        values[top & (mantissa == (1 << mantissa_bits) - 1)] = np.nan
    return values.astype(np.float32)


_OF_EIGHT_BITS: Mapping[str, Array] = {"e4m3": _table(4, False), "e5m2": _table(5, True)}
