"""add, sub, mul, fma, min, max and their like, of floats and of pairs of halves; what is not exact is rounded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from lowerkit.runtimes.cuda.simulated.decoder import Function, InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.exact_rounding import exactly
from lowerkit.runtimes.cuda.simulated.rounding import (
    BF16_NAN,
    canonical,
    directed,
    flush,
    fma_f32,
    fma_f64,
    from_bf16,
    narrow,
    odd_sum,
    saturate,
    two_sum,
)
from lowerkit.runtimes.cuda.simulated.scalar_types import BYTES, Array, pairwise, stored

_HALVES = ("f16", "bf16")
_PAIRS = ("f16x2", "bf16x2")
_FLOATS = ("f32", "f64", *_HALVES, *_PAIRS)
_SIGN = {"f16": 0x8000, "bf16": 0x8000, "f32": 1 << 31, "f64": 1 << 63, "f16x2": 0x80008000, "bf16x2": 0x80008000}
_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000}
_NATIVE: Mapping[str, Function] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _exact(opcode: str) -> Function:
    """Returns the operation on f64 values of narrower ones: exact, or rounded to odd."""
    if opcode == "fma":
        return lambda a, b, c: odd_sum(a * b, c)
    return {"add": odd_sum, "sub": lambda a, b: odd_sum(a, -b), "mul": np.multiply}[opcode]


def widened(x: Array) -> Array:
    """Returns f16, f32 or f64 values, or the bits of bf16, as f64."""
    return (from_bf16(x) if x.dtype == np.uint16 else x).astype(np.float64)


def _rounded(opcode: str, kind: str, mode: str) -> Function:
    """Returns add, sub, mul or fma of one type."""
    if kind == "f64":
        native = fma_f64 if opcode == "fma" else _NATIVE[opcode]
        if mode == "rn":
            return native
        if opcode in ("fma", "mul"):
            return partial(exactly, opcode, native, mode)
        sign = -1.0 if opcode == "sub" else 1.0
        return lambda a, b: directed(*two_sum(a, sign * b), mode)
    if mode == "rn" and kind != "bf16":
        if opcode in _NATIVE:  # numpy rounds halves twice, through f32, which is as good as once
            native = _NATIVE[opcode]
            return lambda a, b: canonical(native(a, b))
        if kind == "f32":
            return fma_f32
    exact = _exact(opcode)

    def function(*values: Array) -> Array:
        wide = [widened(value) for value in values]
        result = exact(*wide)
        if mode == "rm" and opcode != "mul":  # two values that cancel each other give -0 when rounding down
            product = wide[0] * wide[1] if opcode == "fma" else wide[0]
            addend = -wide[1] if opcode == "sub" else wide[-1]
            cancel = (result == 0) & (np.signbit(product) != np.signbit(addend))
            result = np.where(cancel, -0.0, result)
        return narrow(result, kind, mode)

    return function


def _finished(function: Function, kind: str, *, ftz: bool = False, sat: bool = False, relu: bool = False) -> Function:
    """Returns ``function`` of one type with its modifiers around it."""
    if not (ftz or sat or relu):
        return function

    def finished(*values: Array) -> Array:
        result = function(*[flush(value) for value in values]) if ftz else function(*values)
        result = flush(result) if ftz else result
        if kind == "bf16":  # bits: a negative value, but no NaN, has the sign bit set
            return np.where(result > 0x7FFF, np.uint16(0), result)
        result = saturate(result) if sat else result
        return np.where(result < 0, result.dtype.type(0), result) + result.dtype.type(0) if relu else result

    return finished


def _arithmetic(read: InstructionReader) -> Step:
    """add, sub, mul, fma; mad of floats is fma. All but the last operand of ``f32.bf16`` and ``f32.f16`` are narrow."""
    opcode = "fma" if read.instruction.opcode == "mad" else read.instruction.opcode
    mode = read.choice("rn", "rz", "rm", "rp") or "rn"
    ftz, sat = read.flag("ftz"), read.flag("sat")
    relu = opcode == "fma" and read.flag("relu")
    kind = read.kind(*_FLOATS, "f32x2")
    half = kind.removesuffix("x2")
    narrow_kind = read.choice(*_HALVES) if kind == "f32" and opcode != "mul" else None
    if mode != "rn" and half not in ("f32", "f64"):
        raise read.unknown(f"modifier .{mode}")
    if (half in ("f64", "bf16") and (ftz or sat)) or (relu and half not in _HALVES):
        raise read.unknown("a modifier")
    if (kind == "f32x2" and sat) or (narrow_kind and ftz):
        raise read.unknown("a modifier")
    function = _finished(_rounded(opcode, half, mode), half, ftz=ftz, sat=sat, relu=relu)
    count = 3 if opcode == "fma" else 2
    if narrow_kind is not None:
        return read.compute(_of_narrow(function), [narrow_kind] * (count - 1) + [kind], kind)
    return read.compute(pairwise(function, kind) if kind != half else function, [kind] * count, kind)


def _of_narrow(function: Function) -> Function:
    """Returns a function of f32 whose arguments but the last one are f16, or the bits of bf16."""

    def of_narrow(*values: Array) -> Array:
        wide = [from_bf16(x) if x.dtype == np.uint16 else x.astype(np.float32) for x in values[:-1]]
        return function(*wide, values[-1])

    return of_narrow


def _extreme(read: InstructionReader) -> Step:
    """min and max: a number wins over a NaN, with .NaN a NaN wins; -0 is less than +0.

    With .xorsign.abs sizes are compared, and the result has the sign of the product. Of f32 there may be three values.
    """
    largest = read.instruction.opcode == "max"
    if len(read.instruction.operands) == 4:
        return _extreme_of_three(read, largest)
    ftz, nan_wins = read.flag("ftz"), read.flag("NaN")
    sizes = read.flag("xorsign")
    kind = read.kind(*_FLOATS)
    half = kind.removesuffix("x2")
    if (ftz and half not in ("f32", "f16")) or ((nan_wins or sizes) and kind == "f64") or sizes != read.flag("abs"):
        raise read.unknown("a modifier")
    function_of_one = _finished(_extreme_of_one(half, largest, nan_wins), half, ftz=ftz)
    if sizes:
        function_of_one = _with_sign_of_product(function_of_one, half)
    return read.compute(pairwise(function_of_one, kind) if kind != half else function_of_one, [kind, kind], kind)


def _extreme_of_three(read: InstructionReader, largest: bool) -> Step:
    """With .abs sizes are compared, and the result is one."""
    ftz, nan_wins, sizes = read.flag("ftz"), read.flag("NaN"), read.flag("abs")
    kind = read.kind("f32")
    function = _finished(_extreme_of_one(kind, largest, nan_wins), kind, ftz=ftz)

    def of_three(*values: Array) -> Array:
        a, b, c = (np.abs(value) for value in values) if sizes else values
        return function(function(a, b), c)

    return read.compute(of_three, [kind] * 3, kind)


def _with_sign_of_product(function: Function, half: str) -> Function:
    word = stored(f"b{8 * BYTES[half]}")
    sign, infinity = word.type(_SIGN[half]), word.type(_INFINITY[half])

    def of_sizes(a: Array, b: Array) -> Array:
        x, y = a.view(word), b.view(word)
        result = function((x & ~sign).view(a.dtype), (y & ~sign).view(b.dtype)).view(word)
        return np.where(result > infinity, result, result | ((x ^ y) & sign)).view(a.dtype)

    return of_sizes


def extreme(kind: str, *, largest: bool, nan_wins: bool = False) -> Function:
    """Returns the larger or the smaller of two values of a type, packed ones included.

    A number wins over a NaN, but with ``nan_wins``.
    """
    half = kind.removesuffix("x2")
    function = _extreme_of_one(half, largest, nan_wins)
    return pairwise(function, kind) if kind != half else function


def _extreme_of_one(half: str, largest: bool, nan_wins: bool) -> Function:
    pick: Function = (
        (np.maximum if largest else np.minimum) if nan_wins else (np.fmax if largest else np.fmin)
    )  # fmt: skip

    def function(a: Array, b: Array) -> Array:
        if half == "bf16":
            a, b = from_bf16(a), from_bf16(b)
        result = pick(a, b)
        zero = result == 0
        if zero.any():
            x, y = (value.view(stored(f"b{8 * value.itemsize}")) for value in (a, b))
            bits = (x & y if largest else x | y).view(result.dtype)
            result = np.where(zero & (a == b), bits, result)
        if half == "bf16":
            high = (result.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
            return np.where(np.isnan(result), BF16_NAN, high)
        return result if half == "f64" else canonical(result)

    return function


def _sign_bits(read: InstructionReader) -> Step:
    """neg and abs: of the bits, so that NaN keeps its own."""
    ftz = read.flag("ftz")
    kind = read.kind(*_FLOATS)
    if ftz and kind != "f32":
        raise read.unknown("modifier .ftz")
    bits = f"b{8 * BYTES[kind]}"
    sign = stored(bits).type(_SIGN[kind])
    negates = read.instruction.opcode == "neg"

    def function(a: Array) -> Array:
        a = flush(a.view(np.float32)).view(np.uint32) if ftz else a
        return a ^ sign if negates else a & ~sign

    return read.compute(function, [bits], bits)


def _copysign(read: InstructionReader) -> Step:
    kind = read.kind("f32", "f64")
    bits = f"b{8 * BYTES[kind]}"
    sign = stored(bits).type(_SIGN[kind])
    return read.compute(lambda a, b: (a & sign) | (b & ~sign), [bits, bits], bits)


def _test(read: InstructionReader) -> Step:
    """testp: what kind of number a float is."""
    what = read.required("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = read.kind("f32", "f64")
    smallest = np.finfo(np.float32 if kind == "f32" else np.float64).smallest_normal
    tests: Mapping[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= smallest),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < smallest),
    }
    return read.compute(tests[what], [kind], "pred")


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {
    "add": _arithmetic,
    "sub": _arithmetic,
    "mul": _arithmetic,
    "fma": _arithmetic,
    "mad": _arithmetic,
    "min": _extreme,
    "max": _extreme,
    "neg": _sign_bits,
    "abs": _sign_bits,
    "copysign": _copysign,
    "testp": _test,
}
