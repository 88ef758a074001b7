"""add, sub, mul, mad, div, rem, abs, neg, min and max of integers: they wrap around, and division truncates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.decoder import Function, InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.scalar_types import BYTES, SIGNED, UNSIGNED, Array, pairwise

_INTEGERS = (*SIGNED, *UNSIGNED)
_PAIRS = ("u16x2", "s16x2")


def _elementwise(function: Function, *kinds: str) -> Callable[[InstructionReader], Step]:
    """An operation on ``kinds``; without them, on all integers."""

    def build(read: InstructionReader) -> Step:
        kind = read.kind(*(kinds or _INTEGERS))
        operation = pairwise(function, kind) if kind in _PAIRS else function
        return read.compute(operation, [kind] * (len(read.instruction.operands) - 1), kind)

    return build


def _sum(function: Function) -> Callable[[InstructionReader], Step]:
    def build(read: InstructionReader) -> Step:
        saturated = read.flag("sat")
        kind = read.kind(*(("s32",) if saturated else (*_INTEGERS, *_PAIRS)))

        def clamped(a: Array, b: Array) -> Array:
            wide = function(a.astype(np.int64), b.astype(np.int64))
            return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32)

        operation = pairwise(function, kind) if kind in _PAIRS else function
        return read.compute(clamped if saturated else operation, [kind, kind], kind)

    return build


def _product(read: InstructionReader) -> Step:
    """mul and mad: the low half, the high half or the whole of a product, and a third operand to add."""
    adds = read.instruction.opcode == "mad"
    part = read.required("lo", "hi", "wide")
    saturated = read.flag("sat")
    if saturated and not (adds and part == "hi"):
        raise read.unknown("modifier .sat")
    kind = read.kind(*(("s32",) if saturated else ("u16", "s16", "u32", "s32") if part == "wide" else _INTEGERS))
    result = f"{kind[0]}{16 * BYTES[kind]}" if part == "wide" else kind
    multiply = {"lo": np.multiply, "hi": high_product, "wide": _whole_product}[part]
    if not adds:
        return read.compute(multiply, [kind, kind], result)

    def multiply_and_add(a: Array, b: Array, c: Array) -> Array:
        if saturated:
            total = multiply(a, b).astype(np.int64) + c
            return np.clip(total, -(1 << 31), (1 << 31) - 1).astype(np.int32)
        return multiply(a, b) + c

    return read.compute(multiply_and_add, [kind, kind, result], result)


def _whole_product(a: Array, b: Array) -> Array:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


def high_product(a: Array, b: Array) -> Array:
    """Returns the high half of the product of two arrays of one integer type."""
    if a.dtype.itemsize < 8:
        return (_whole_product(a, b) >> (8 * a.dtype.itemsize)).astype(a.dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    x_low, x_high, y_low, y_high = x & low, x >> shift, y & low, y >> shift
    middle = x_high * y_low + (x_low * y_low >> shift)
    other = x_low * y_high + (middle & low)
    high = x_high * y_high + (middle >> shift) + (other >> shift)
    if a.dtype.kind == "i":  # what a sign bit weighs too much as an unsigned one
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.view(a.dtype)


def _quotient(a: Array, b: Array) -> Array:
    """By zero: all bits set, which is what cards give; PTX leaves it open."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":  # numpy rounds down; the smallest integer by -1 stays what it is
        quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, ~b, quotient)


def _remainder(a: Array, b: Array) -> Array:
    """By zero: the dividend, so that quotient * divisor + remainder is the dividend; PTX leaves it open."""
    one = b.dtype.type(1)
    safe = np.where(b == 0, one, b)
    if b.dtype.kind == "i":
        safe = np.where(b == -one, one, safe)  # the remainder is 0 too, and the smallest integer by -1 overflows
    return np.where(b == 0, a, np.fmod(a, safe))


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {
    "add": _sum(np.add),
    "sub": _sum(np.subtract),
    "mul": _product,
    "mad": _product,
    "div": _elementwise(_quotient),
    "rem": _elementwise(_remainder),
    "abs": _elementwise(np.abs, *SIGNED),
    "neg": _elementwise(np.negative, *SIGNED),
    "min": _elementwise(np.minimum, *_INTEGERS, *_PAIRS),
    "max": _elementwise(np.maximum, *_INTEGERS, *_PAIRS),
}
