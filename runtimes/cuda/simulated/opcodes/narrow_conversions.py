"""cvt to and from the types of 8 bits, which come in pairs, and to tf32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.rounding import F32_NAN
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_core.terms import values_of

NARROW_TYPES = ("e4m3x2", "e5m2x2", "tf32")
_LARGEST: Mapping[str, int] = {"e4m3": 0x7E, "e5m2": 0x7B}  # the code of the largest finite value
_NAN = np.uint8(0x7F)


def build_narrow_conversion(read: InstructionReader) -> Step:
    """Returns the step of a conversion from or to one of :data:`NARROW_TYPES`."""
    types = [modifier for modifier in read.instruction.modifiers if modifier in (*NARROW_TYPES, "f32", "f16x2")]
    read.drop(*types)
    if types == ["tf32", "f32"]:
        return _to_tf32(read)
    read.required("rn")
    if types in (["f16x2", "e4m3x2"], ["f16x2", "e5m2x2"]):
        return _from_pair(read, types[1].removesuffix("x2"), read.flag("relu"))
    if len(types) != 2 or types[0] not in ("e4m3x2", "e5m2x2") or types[1] not in ("f32", "f16x2"):
        raise read.unknown("the types")
    read.required("satfinite")
    return _to_pair(read, types[0].removesuffix("x2"), types[1], read.flag("relu"))


def _to_tf32(read: InstructionReader) -> Step:
    """rna rounds to nearest, ties away from zero; rn to even. The lowest 13 bits of the result are 0."""
    mode = read.required("rna", "rn", "rz")
    satfinite = read.flag("satfinite")
    relu = read.flag("relu")

    def function(a: Array) -> Array:
        bits = a.view(np.uint32)
        low = bits & np.uint32(0x1FFF)
        if mode == "rna":
            up = low >= 0x1000
        else:
            odd = (bits >> np.uint32(13)) & np.uint32(1) == 1
            up = (mode == "rn") & ((low > 0x1000) | ((low == 0x1000) & odd))
        result = (bits - low) + np.where(up & np.isfinite(a), np.uint32(0x2000), np.uint32(0))
        if satfinite:
            infinite = (result & np.uint32(0x7FFFFFFF)) == np.uint32(0x7F800000)
            result = np.where(infinite, (result & np.uint32(1 << 31)) | np.uint32(0x7F7FE000), result)
        if relu:
            result = np.where(result >> np.uint32(31) == 1, np.uint32(0), result)
        return np.where(np.isnan(a), F32_NAN.view(np.uint32), result)

    return read.compute(function, ["f32"], "b32")


def _encoded(values: Array, kind: str, relu: bool) -> Array:
    """Returns f64 values as the nearest ones of 8 bits, ties to even; what is too large becomes the largest one."""
    finite = values_of(np.arange(_LARGEST[kind] + 1, dtype=np.uint8), kind).astype(np.float64)
    middles = (finite[1:] + finite[:-1]) / 2
    size = np.abs(values)
    low, high = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
    # Between two middles both are the same; at one they are the codes beside it.
    code = np.where(low % 2 == 0, low, high).astype(np.uint8)
    code = code | np.where(np.signbit(values), np.uint8(0x80), np.uint8(0))
    if relu:
        code = np.where(np.signbit(values), np.uint8(0), code)
    return np.where(np.isnan(values), _NAN, code)


def _to_pair(read: InstructionReader, kind: str, of: str, relu: bool) -> Step:
    """Of two f32 the first one goes to the high half; f16x2 keeps the order."""

    def from_two(a: Array, b: Array) -> Array:
        high, low = (_encoded(each.astype(np.float64), kind, relu).astype(np.uint16) for each in (a, b))
        return high << np.uint16(8) | low

    def from_packed(a: Array) -> Array:
        high, low = ((a >> np.uint32(shift)).astype(np.uint16).view(np.float16).astype(np.float32) for shift in (16, 0))
        return from_two(high, low)

    if of == "f32":
        return read.compute(from_two, ["f32", "f32"], "b16")
    return read.compute(from_packed, ["b32"], "b16")


def _from_pair(read: InstructionReader, kind: str, relu: bool) -> Step:
    def function(a: Array) -> Array:
        halves: list[Array] = []
        for shift in (0, 8):
            value = values_of((a >> np.uint16(shift)).astype(np.uint8), kind)
            bits = value.astype(np.float16).view(np.uint16)
            bits = np.where(np.isnan(value), np.uint16(0x7FFF), bits)
            halves.append(np.where(relu & np.signbit(value) & ~np.isnan(value), np.uint16(0), bits).astype(np.uint32))
        return halves[0] | halves[1] << np.uint32(16)

    return read.compute(function, ["b16"], "b32")
