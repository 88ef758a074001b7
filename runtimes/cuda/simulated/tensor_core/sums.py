"""Sums of products as tensor cores make them.

The products and the accumulator are aligned to the largest exponent among them (of a product: the sum of its factors'
exponents), cut towards zero to some bits below it, added exactly, and the sum is cut to f32 or rounded to f16.

How it is fast: a product of two values is exact in f32, times a power of two it stands in units of the last bit that is
kept, and its conversion to an integer cuts it. Where exponents are so extreme that f32 would under- or overflow, the
same is done in f64.
"""

from __future__ import annotations

import numpy as np

from lowerkit.runtimes.cuda.simulated.rounding import F16_NAN, F32_NAN
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_core.rules import SumRule
from lowerkit.runtimes.cuda.simulated.tensor_core.terms import OF_ZERO, Terms, terms_of_values

_F32, _F64 = np.float32, np.float64
# Between these exponents, products and units have f32 values that are exact, or too small to count.
_LEAST_OF_F32, _LARGEST_OF_F32 = -100, 125
_AT_ONCE = 8  # terms whose sum fits into 32 bits: each is less than 2**27


def sum_of_products(a: Terms, b: Terms, c: Array, rule: SumRule) -> Array:
    """Returns c + a[0] * b[0] + a[1] * b[1] + ..., as tensor cores give it.

    Args:
        a, b: the factors, [k, ...]; their shapes broadcast against each other behind the first axis. The last axis
            should be long: the time is that of operations on arrays.
        c: the accumulator, f32 or f16, in the broadcast shape.
        rule: how they are added.

    Returns:
        An array like ``c``; NaN is the one that a card writes.
    """
    result = c
    with np.errstate(all="ignore"):
        for start in range(0, a.values.shape[0], rule.group):
            part = slice(start, start + rule.group)
            before, result = result, _one_sum(a.at(part), b.at(part), result, rule)
            if not (a.finite and b.finite and bool(np.isfinite(before).all())):
                result = _with_special_values(a.at(part), b.at(part), before, result)
    return result


def exact_sum_of_products(a: Terms, b: Terms, c: Array) -> Array:
    """Returns the sum rounded once from a sum in f64; no card computes this. Arguments as of sum_of_products."""
    with np.errstate(all="ignore"):
        result = _plain_sum(a, b, c).astype(c.dtype)
    nan = np.isnan(result)
    return np.where(nan, F16_NAN if c.dtype == np.float16 else F32_NAN, result) if nan.any() else result


def _one_sum(a: Terms, b: Terms, c: Array, rule: SumRule) -> Array:
    narrow = c.dtype == np.float16
    addend = terms_of_values(c.astype(_F32), "f16" if narrow else "f32")
    largest = addend.exponents
    together = np.empty_like(largest)
    for x, y in zip(a.exponents, b.exponents, strict=True):
        np.add(x, y, out=together)
        np.maximum(largest, together, out=largest)
    # Where all are zero, any exponent does.
    largest = np.where(largest <= OF_ZERO // 2, np.int16(0), np.maximum(largest, np.int16(rule.least_exponent)))
    ordinary = int(largest.min()) >= _LEAST_OF_F32 and int(largest.max()) <= _LARGEST_OF_F32
    bits = rule.fraction_bits
    if ordinary:
        unit = ((127 + bits - largest.astype(np.int32)) << np.int32(23)).view(_F32)
        total = _cut_sum_in_f32(a.values, b.values, addend.values, unit)
    else:
        unit = np.ldexp(1.0, bits - largest.astype(np.int32))
        total = _cut_sum_in_f64(a.values, b.values, addend.values, unit)
    exact = total / unit  # by a power of two
    if narrow:
        return exact.astype(np.float16)
    return _cut_to_f32(exact, rule.result_bits, ordinary)


def _cut_sum_in_f32(a: Array, b: Array, c: Array, unit: Array) -> Array:
    """Returns the sum of all terms, each cut to units, f64 in units of 1 / unit."""
    total = (c * unit).astype(np.int32).astype(_F64)
    product = np.empty(c.shape, _F32)
    cut, part = np.empty(c.shape, np.int32), np.empty(c.shape, np.int32)
    for start in range(0, len(a), _AT_ONCE):
        part.fill(0)
        for x, y in zip(a[start : start + _AT_ONCE], b[start : start + _AT_ONCE], strict=True):
            np.multiply(x, y, out=product)
            np.multiply(product, unit, out=product)
            np.copyto(cut, product, casting="unsafe")
            np.add(part, cut, out=part)
        total += part
    return total


def _cut_sum_in_f64(a: Array, b: Array, c: Array, unit: Array) -> Array:
    total = np.trunc(c.astype(_F64) * unit)
    for x, y in zip(a.astype(_F64), b.astype(_F64), strict=True):
        total += np.trunc(x * y * unit)
    return total + 0.0  # a sum of zeros is +0


def _cut_to_f32(exact: Array, bits: int, ordinary: bool) -> Array:
    """Returns f64 values cut towards zero to f32 with ``bits`` fraction bits; from 2**128 on they are infinite."""
    mask = ~np.uint64((1 << (52 - bits)) - 1)
    cut = (exact.view(np.uint64) & mask).view(_F64)
    if ordinary:  # no result is subnormal
        return cut.astype(_F32)
    small = np.abs(exact) < 2.0**-126
    last = 2.0 ** (-126 - bits)
    return np.where(small, np.trunc(exact / last) * last, cut).astype(_F32)


def _with_special_values(a: Terms, b: Terms, c: Array, result: Array) -> Array:
    """Returns ``result`` with NaN and infinities where a term is one: as if nothing were cut."""
    total = _plain_sum(a, b, c)
    nan = F16_NAN if c.dtype == np.float16 else F32_NAN
    return np.where(np.isfinite(total), result, np.where(np.isnan(total), nan, total.astype(c.dtype)))


def _plain_sum(a: Terms, b: Terms, c: Array) -> Array:
    """Returns the sum in f64."""
    total = c.astype(_F64)
    for x, y in zip(a.values.astype(_F64), b.values.astype(_F64), strict=True):
        total += x * y
    return total
