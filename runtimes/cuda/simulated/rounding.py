"""Sums, products and conversions of floats that are rounded once, in any of the four directions, with numpy alone.

Vocabulary
    rounded to odd      of the two neighbours of an inexact value the one with an odd last bit; rounding that once more
                        to two bits fewer (or less) gives what rounding the exact value at once would have given
    mode                rn (to nearest, ties to even), rz (toward zero), rm (down), rp (up)

Everything narrower than f64 goes through f64: products of two f32 are exact there, sums are rounded to odd.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from lowerkit.runtimes.cuda.simulated.scalar_types import Array

_F64, _F32, _U64, _U32, _U16 = np.float64, np.float32, np.uint64, np.uint32, np.uint16
F32_NAN = np.uint32(0x7FFFFFFF).view(np.float32)  # what a card writes for every NaN
F16_NAN = np.uint16(0x7FFF).view(np.float16)
BF16_NAN = np.uint16(0x7FFF)
_SMALLEST_NORMAL = {np.dtype(_F32): np.float32(2.0**-126), np.dtype(np.float16): np.float16(2.0**-14)}
_TWICE_SMALLEST_NORMAL = _U64(2 * int(np.float64(2.0**-126).view(np.uint64)) - 1)
_SPLITTER = _F64(2.0**27 + 1)


def canonical(x: Array) -> Array:
    """Returns ``x`` (f32 or f16) with every NaN replaced by the one that a card writes."""
    nan = x != x  # noqa: PLR0124 - faster than isnan
    if np.count_nonzero(nan):  # faster than any
        return np.where(nan, F32_NAN if x.dtype == _F32 else F16_NAN, x)
    return x


def flush(x: Array) -> Array:
    """Returns ``x`` (f32 or f16) with subnormal values replaced by zeros of their sign."""
    return np.where(np.abs(x) < _SMALLEST_NORMAL[x.dtype], np.copysign(x.dtype.type(0), x), x)


def saturate(x: Array) -> Array:
    """Returns ``x`` clamped to 0 to 1; NaN and -0 become +0."""
    one = x.dtype.type(1)
    return np.where(x > 0, np.minimum(x, one), x.dtype.type(0))


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns the f64 sum of f64 ``a`` and ``b``, and its exact error where neither overflows."""
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def odd_sum(a: Array, b: Array) -> Array:
    """Returns ``a + b`` of f64, rounded to odd."""
    total, error = two_sum(a, b)
    return _made_odd(total, error)


def _made_odd(total: Array, error: Array) -> Array:
    even = (total.view(_U64) & _U64(1)) == 0
    return np.where(even & (error != 0) & np.isfinite(total) & np.isfinite(error), _toward(total, error), total)


def _toward(x: Array, direction: Array) -> Array:
    """Returns the neighbour of ``x`` on the side that the sign of ``direction`` says."""
    return np.nextafter(x, np.where(direction > 0, x.dtype.type(np.inf), x.dtype.type(-np.inf)))


def directed(total: Array, error: Array, mode: str) -> Array:
    """Returns f64 ``total`` + ``error`` rounded by ``mode``; ``total`` is the nearest f64 to that sum."""
    if mode == "rn":
        return total
    if mode == "rz":
        wrong = ((error < 0) & (total > 0)) | ((error > 0) & (total < 0))
    else:
        wrong = error < 0 if mode == "rm" else error > 0
    return np.where(wrong & np.isfinite(error), _toward(total, error), total)


def narrow(x: Array, kind: str, mode: str = "rn") -> Array:
    """Returns f64 ``x`` (exact, or rounded to odd) as ``kind`` f32 or f16, or as the bits of bf16; NaN is canonical."""
    if kind == "bf16":
        return _narrow_to_bf16(x, mode)
    near = x.astype(_F32 if kind == "f32" else np.float16)
    if mode != "rn":
        # A float16 that comes from a float64 compares as one.
        step = {"rz": np.abs(near) > np.abs(x), "rm": near > x, "rp": near < x}[mode]
        target = {"rz": np.zeros_like(near), "rm": near.dtype.type(-np.inf), "rp": near.dtype.type(np.inf)}[mode]
        near = np.where(step, np.nextafter(near, target), near)
    return canonical(near)


def _narrow_to_bf16(x: Array, mode: str) -> Array:
    near = x.astype(_F32)
    bits = near.view(_U32)
    inexact = (near != x) & ((bits & _U32(1)) == 0) & np.isfinite(x)
    # An overflow is inexact too: toward zero from infinity lies the largest f32, and that is odd.
    odd = np.where(inexact, np.nextafter(near, np.where(x > near, _F32(np.inf), _F32(-np.inf))), near)
    bits = odd.view(_U32)
    if mode == "rn":
        bits = bits + _U32(0x7FFF) + ((bits >> _U32(16)) & _U32(1))
    elif mode != "rz":
        away = (bits >> _U32(31)) == (1 if mode == "rm" else 0)
        bits = np.where(away & np.isfinite(odd), bits + _U32(0xFFFF), bits)
    return np.where(np.isnan(x), BF16_NAN, (bits >> _U32(16)).astype(_U16))


def from_bf16(bits: Array) -> Array:
    """Returns the bits of bf16 as f32."""
    return (bits.astype(_U32) << _U32(16)).view(_F32)


def integer_to_f64(x: Array) -> tuple[Array, Array]:
    """Returns integers as the nearest f64, and the exact error."""
    if x.dtype.itemsize < 8:
        return x.astype(_F64), np.zeros((1, 1))
    low = x & x.dtype.type(0xFFFFFFFF)
    return two_sum((x - low).astype(_F64), low.astype(_F64))


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """Returns f32 ``a * b + c``, rounded once to nearest; NaN is canonical."""
    product, addend = a.astype(_F64) * b, c.astype(_F64)
    total = product + addend
    near = total.astype(_F32)
    # Rounding twice is wrong only where the f64 sum is a tie of f32 that the exact sum is not: bit 28 and none below.
    # Subnormal results have their ties higher up, so that they all are looked at; 2 * bits - 1 passes over zeros.
    bits = total.view(_U64)
    risky = (bits & _U64(0x1FFFFFFF)) == _U64(0x10000000)
    risky |= bits + bits - _U64(1) < _TWICE_SMALLEST_NORMAL
    if np.count_nonzero(risky):
        at = np.nonzero(risky)
        shape = total.shape
        near[at] = odd_sum(np.broadcast_to(product, shape)[at], np.broadcast_to(addend, shape)[at]).astype(_F32)
    return canonical(near)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns the f64 product of f64 ``a`` and ``b``, and its exact error where nothing over- or underflows."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _halves(x: Array) -> tuple[Array, Array]:
    high = x * _SPLITTER
    high = high - (high - x)
    return high, x - high


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """Returns f64 ``a * b + c``, rounded once to nearest (Boldo and Melquiond, 2008)."""
    a, b, c = (np.ascontiguousarray(x) for x in np.broadcast_arrays(a, b, c))
    product, low = two_product(a, b)
    inner, inner_error = two_sum(c, low)
    high, error = two_sum(product, inner)
    total = high + _made_odd(*two_sum(inner_error, error))
    # A zero or what is not finite needs no exact sum; beside an infinite c the product may not overflow first.
    simple = (a == 0) | (b == 0) | ~(np.isfinite(a) & np.isfinite(b))
    total = np.where(simple, product + c, np.where(np.isfinite(c), total, c))
    size = np.abs(product)
    plain = (size < 2.0**900) & (size > 2.0**-800) & (np.abs(a) < 2.0**900) & (np.abs(b) < 2.0**900)
    plain &= np.abs(c) < 2.0**1000
    extreme = ~(plain | simple) & np.isfinite(c)
    if extreme.any():
        at = np.nonzero(extreme)
        total[at] = [_exact_fma(x, y, z) for x, y, z in zip(a[at], b[at], c[at], strict=True)]
    return total


def _exact_fma(a: Any, b: Any, c: Any) -> float:
    """Returns one ``a * b + c`` of finite values near the limits of f64; neither a nor b is zero."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    try:
        return math.copysign(float(exact), -1.0 if exact < 0 else 1.0)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
