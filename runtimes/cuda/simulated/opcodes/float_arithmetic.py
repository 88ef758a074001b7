"""add, sub, mul, fma, div, sqrt, min, max and their like, of floats and of pairs of halves.

add, sub, mul, fma, div.rn, rcp.rn and sqrt.rn are rounded once. The approximations (ex2.approx, div.full, ...) give the
correctly rounded value, which is closer than a card's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.decoder import Function, InstructionReader, Step
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
        if opcode == "fma":
            return fma_f64
        if mode == "rn":
            return _NATIVE[opcode]
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
    """add, sub, mul, fma; mad of floats is fma."""
    opcode = "fma" if read.instruction.opcode == "mad" else read.instruction.opcode
    mode = read.choice("rn", "rz", "rm", "rp") or "rn"
    ftz, sat = read.flag("ftz"), read.flag("sat")
    relu = opcode == "fma" and read.flag("relu")
    kind = read.kind(*_FLOATS)
    half = kind.removesuffix("x2")
    if mode != "rn" and kind != "f32" and not (kind == "f64" and opcode in ("add", "sub")):
        raise read.unknown(f"modifier .{mode}")
    if (half in ("f64", "bf16") and (ftz or sat)) or (relu and half not in _HALVES):
        raise read.unknown("a modifier")
    function = _finished(_rounded(opcode, half, mode), half, ftz=ftz, sat=sat, relu=relu)
    count = 3 if opcode == "fma" else 2
    return read.compute(pairwise(function, kind) if kind != half else function, [kind] * count, kind)


def _through_f64(function: Function, kind: str) -> Function:
    if kind == "f64":
        return function
    return lambda *values: narrow(function(*[widened(value) for value in values]), kind)


def _special(function: Function, modes: Mapping[str, tuple[str, ...]]) -> Callable[[InstructionReader], Step]:
    """div, rcp, sqrt and the approximations; ``modes`` has the types for each modifier that says how they round."""

    def build(read: InstructionReader) -> Step:
        mode = read.required(*modes)
        ftz = read.flag("ftz")
        kind = read.kind(*modes[mode])
        if ftz and kind != "f32":
            if kind not in _HALVES:
                raise read.unknown("modifier .ftz")
            ftz = False  # ex2.approx.ftz.bf16 has no other form; 2 to the power of a subnormal value is 1 either way
        count = len(read.instruction.operands) - 1
        read.count(3 if read.instruction.opcode == "div" else 2)
        return read.compute(_finished(_through_f64(function, kind), kind, ftz=ftz), [kind] * count, kind)

    return build


def _reciprocal(x: Array) -> Array:
    return 1.0 / x


def _reciprocal_root(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def _extreme(read: InstructionReader) -> Step:
    """min and max: a number wins over a NaN, with .NaN a NaN wins; -0 is less than +0."""
    largest = read.instruction.opcode == "max"
    ftz, nan_wins = read.flag("ftz"), read.flag("NaN")
    kind = read.kind(*_FLOATS)
    half = kind.removesuffix("x2")
    if (ftz and half not in ("f32", "f16")) or (nan_wins and kind == "f64"):
        raise read.unknown("a modifier")
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

    function_of_one = _finished(function, half, ftz=ftz)
    return read.compute(pairwise(function_of_one, kind) if kind != half else function_of_one, [kind, kind], kind)


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


_ROUNDED = {"rn": ("f32", "f64"), "approx": ("f32",)}
_APPROXIMATE = {"approx": ("f32",)}
_APPROXIMATE_HALVES = {"approx": ("f32", "f16", "bf16")}

OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {
    "add": _arithmetic,
    "sub": _arithmetic,
    "mul": _arithmetic,
    "fma": _arithmetic,
    "mad": _arithmetic,
    "div": _special(np.divide, {**_ROUNDED, "full": ("f32",)}),
    "rcp": _special(_reciprocal, _ROUNDED),
    "sqrt": _special(np.sqrt, _ROUNDED),
    "rsqrt": _special(_reciprocal_root, _APPROXIMATE),
    "ex2": _special(np.exp2, _APPROXIMATE_HALVES),
    "tanh": _special(np.tanh, _APPROXIMATE_HALVES),
    "lg2": _special(np.log2, _APPROXIMATE),
    "sin": _special(np.sin, _APPROXIMATE),
    "cos": _special(np.cos, _APPROXIMATE),
    "min": _extreme,
    "max": _extreme,
    "neg": _sign_bits,
    "abs": _sign_bits,
    "copysign": _copysign,
    "testp": _test,
}
