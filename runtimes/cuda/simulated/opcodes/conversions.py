"""cvt between integers and floats of all sizes, with every way to round, to clamp and to flush."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.decoder import Function, InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.float_arithmetic import widened
from lowerkit.runtimes.cuda.simulated.opcodes.narrow_conversions import NARROW_TYPES, build_narrow_conversion
from lowerkit.runtimes.cuda.simulated.rounding import (
    directed,
    flush,
    from_bf16,
    integer_to_f64,
    narrow,
    odd_sum,
    saturate,
)
from lowerkit.runtimes.cuda.simulated.scalar_types import BYTES, Array, DType, computed, is_float, unsigned

_INTEGERS = tuple(f"{letter}{bits}" for letter in "us" for bits in (8, 16, 32, 64))
_FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGRAL: Mapping[str, Function] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _convert(read: InstructionReader) -> Step:
    if any(modifier in NARROW_TYPES for modifier in read.instruction.modifiers):
        return build_narrow_conversion(read)
    ftz, sat, relu = read.flag("ftz"), read.flag("sat"), read.flag("relu")
    mode, integral = read.choice("rn", "rz", "rm", "rp"), read.choice(*_TO_INTEGRAL)
    to = read.kind(*_INTEGERS, *_FLOATS, "f16x2", "bf16x2")
    of = read.kind(*_INTEGERS, *_FLOATS)
    if ftz and "f32" not in (to, of):
        raise read.unknown("modifier .ftz")
    if relu and (of != "f32" or to.removesuffix("x2") not in ("f16", "bf16")):
        raise read.unknown("modifier .relu")
    if to in ("f16x2", "bf16x2"):
        if of != "f32" or mode not in ("rn", "rz") or integral or sat or ftz:
            raise read.unknown("a modifier")
        return read.compute(_to_pair(to, mode, relu), [of, of], to)
    if not is_float(to) and not is_float(of):
        if mode or integral:
            raise read.unknown("rounding")
        return _step(read, lambda a: _clamped(a, computed(to)) if sat else a.astype(computed(to)), of, to)
    if is_float(to) and is_float(of):
        return _step(read, _float_to_float(read, of, to, (mode, integral, ftz, sat, relu)), of, to)
    if is_float(to):
        if mode is None or integral:
            raise read.unknown("rounding")
        return _step(read, _integer_to_float(to, mode, sat), of, to)
    if integral is None or mode:
        raise read.unknown("rounding")
    return _step(read, _float_to_integer(of, to, _TO_INTEGRAL[integral], ftz), of, to)


def _step(read: InstructionReader, function: Function, of: str, to: str) -> Step:
    """The step of a conversion: a wider source gives its low bits, a wider result is filled with the sign or zeros."""
    read.finish()
    read.count(2)
    source = read.source(1, of, wider=not is_float(of))
    target = read.target(read.operand(0), to, wider=not is_float(to))
    held = read.slots.template[source].dtype
    result = read.slots.template[target].dtype
    low, view = unsigned(BYTES[of]), computed(of)
    wide = np.dtype(f"{computed(to).kind}{result.itemsize}") if not is_float(to) else computed(to)

    def convert(a: Array) -> Array:
        return function((a.astype(low) if a.dtype != low else a).view(view)).astype(wide)

    return read.step(convert, [source], [f"b{8 * held.itemsize}"], target)


def _clamped(a: Array, to: DType) -> Array:
    """Returns integers clamped to the range of another integer type."""
    limits, own = np.iinfo(to), np.iinfo(a.dtype)
    low, high = max(int(limits.min), int(own.min)), min(int(limits.max), int(own.max))
    return np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(to)


def _to_pair(to: str, mode: str, relu: bool) -> Function:
    """Two f32, the first one to the high half."""
    half = to.removesuffix("x2")

    def bits(a: Array) -> Array:
        return _relu(narrow(a.astype(np.float64), half, mode), relu).view(np.uint16).astype(np.uint32)

    return lambda a, b: bits(a) << np.uint32(16) | bits(b)


def _relu(a: Array, relu: bool) -> Array:
    """Returns f16 values, or the bits of bf16, with +0 for negative ones."""
    if not relu:
        return a
    return np.where(a.view(np.uint16) > 0x7FFF, np.uint16(0), a.view(np.uint16)).view(a.dtype)


def _float_to_float(
    read: InstructionReader, of: str, to: str, how: tuple[str | None, str | None, bool, bool, bool]
) -> Function:
    mode, integral, ftz, sat, relu = how
    narrows = BYTES[to] < BYTES[of] or {of, to} == {"f16", "bf16"}
    if mode is None and (of, to) == ("f16", "bf16"):
        mode = "rn"  # the one conversion that may leave it out
    if (mode is not None) != narrows or (integral and of != to) or (sat and to == "bf16"):
        raise read.unknown("rounding")

    def function(a: Array) -> Array:
        a = flush(a) if ftz and of == "f32" else a
        if of == to:
            if integral and of == "bf16":
                return narrow(_TO_INTEGRAL[integral](widened(a)), "bf16")
            result = _TO_INTEGRAL[integral](a) if integral else a
        elif narrows:
            result = _relu(narrow(widened(a), to, mode or "rn"), relu)
        else:
            result = (from_bf16(a) if of == "bf16" else a).astype(computed(to))
        result = flush(result) if ftz and to == "f32" else result
        return saturate(result) if sat else result

    return function


def _integer_to_float(to: str, mode: str, sat: bool) -> Function:
    def function(a: Array) -> Array:
        value, error = integer_to_f64(a)
        result = directed(value, error, mode) if to == "f64" else narrow(odd_sum(value, error), to, mode)
        return saturate(result) if sat and to != "bf16" else result

    return function


def _float_to_integer(of: str, to: str, integral: Function, ftz: bool) -> Function:
    """Out of range: the nearest integer. NaN: 0, or with 64 bits on a side only the highest bit set."""
    dtype = computed(to)
    limits = np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max) + (BYTES[to] < 8)  # exact: 2^n is the first that is too large
    not_a_number = 1 << (8 * BYTES[to] - 1) if of == "f64" or BYTES[to] == 8 else 0
    nan = np.array(not_a_number, f"u{BYTES[to]}").view(dtype)

    def function(a: Array) -> Array:
        value = integral(widened(flush(a) if ftz and of == "f32" else a))
        inside = (value >= low) & (value < high)
        result = np.where(inside, value, 0).astype(dtype)
        result = np.where(inside, result, np.where(value < low, dtype.type(limits.min), dtype.type(limits.max)))
        return np.where(np.isnan(value), nan, result)

    return function


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"cvt": _convert}
