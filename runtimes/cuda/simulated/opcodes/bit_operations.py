"""and, or, xor, not, lop3, shifts, bit fields, counts of bits, and permutations of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.decoder import Function, InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.scalar_types import BITS, BYTES, Array


def _logic(function: Function) -> Callable[[InstructionReader], Step]:
    def build(read: InstructionReader) -> Step:
        kind = read.kind("pred", *BITS)
        return read.compute(function, [kind] * (len(read.instruction.operands) - 1), kind)

    return build


def _lookup(read: InstructionReader) -> Step:
    """lop3: any logic function of three operands; bit 4a + 2b + c of the table is its value."""
    kind = read.kind("b32")
    read.count(5)
    table = read.immediate(4)
    read.finish()
    terms = [number for number in range(8) if table >> number & 1]

    def function(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
        for term in terms:
            result |= (a if term & 4 else ~a) & (b if term & 2 else ~b) & (c if term & 1 else ~c)
        return result

    sources = [read.source(number, kind) for number in (1, 2, 3)]
    return read.step(function, sources, [kind] * 3, read.target(read.operand(0), kind))


def _shift_left(read: InstructionReader) -> Step:
    kind = read.kind(*BITS)
    bits = 8 * BYTES[kind]
    return read.compute(
        lambda a, n: np.where(n < bits, a << n.astype(a.dtype), a.dtype.type(0)), [kind, "u32"], kind
    )  # fmt: skip


def _shift_right(read: InstructionReader) -> Step:
    kind = read.kind(*BITS, "u16", "u32", "u64", "s16", "s32", "s64")
    bits = 8 * BYTES[kind]

    def function(a: Array, n: Array) -> Array:
        if a.dtype.kind == "i":
            return a >> np.minimum(n, np.uint32(bits - 1)).astype(a.dtype)
        return np.where(n < bits, a >> n.astype(a.dtype), a.dtype.type(0))

    return read.compute(function, [kind, "u32"], kind)


def _funnel_shift(read: InstructionReader) -> Step:
    """shf: 32 bits out of the 64 of b and a; left gives the high half of the shifted, right the low half."""
    left = read.required("l", "r") == "l"
    clamps = read.required("wrap", "clamp") == "clamp"
    kind = read.kind("b32")

    def function(a: Array, b: Array, c: Array) -> Array:
        n = (np.minimum(c, np.uint32(32)) if clamps else c & np.uint32(31)).astype(np.uint64)
        both = b.astype(np.uint64) << np.uint64(32) | a
        return ((both << n >> np.uint64(32)) if left else both >> n).astype(np.uint32)

    return read.compute(function, [kind, kind, "u32"], kind)


def _low_bits(count: Array, bits: int) -> Array:
    """Returns words of ``bits`` with the lowest ``count`` bits set; count may be larger."""
    dtype = np.dtype(f"u{bits // 8}")
    ones = ~dtype.type(0)
    inside = np.minimum(count, np.uint32(bits - 1)).astype(dtype)
    return np.where(count >= bits, ones, (dtype.type(1) << inside) - dtype.type(1))


def _extract(read: InstructionReader) -> Step:
    """bfe: length bits from a position on; what lies behind the top is the sign of the field."""
    kind = read.kind("u32", "s32", "u64", "s64")
    bits = 8 * BYTES[kind]
    signed = kind[0] == "s"

    def function(a: Array, position: Array, length: Array) -> Array:
        start, count = position & np.uint32(0xFF), length & np.uint32(0xFF)
        inside = np.minimum(start, np.uint32(bits - 1)).astype(a.dtype)
        moved = np.where(start >= bits, a.dtype.type(0), a >> inside)
        mask = _low_bits(count, bits)
        if not signed:
            return moved & mask
        top = np.minimum(np.maximum(start + count, np.uint32(1)) - np.uint32(1), np.uint32(bits - 1)).astype(a.dtype)
        negative = ((a >> top) & a.dtype.type(1) == 1) & (count > 0)
        # Bits of the field beyond the top of the word are copies of the sign too.
        there = mask & _low_bits(np.maximum(np.uint32(bits), start) - start, bits)
        return np.where(negative, moved & there | ~there, moved & there)

    unsigned = f"u{bits}"
    return read.compute(function, [unsigned, "u32", "u32"], unsigned)


def _insert(read: InstructionReader) -> Step:
    """bfi: b with length bits from a position on replaced by the lowest ones of a."""
    kind = read.kind("b32", "b64")
    bits = 8 * BYTES[kind]

    def function(a: Array, b: Array, position: Array, length: Array) -> Array:
        start, count = position & np.uint32(0xFF), length & np.uint32(0xFF)
        inside = np.minimum(start, np.uint32(bits - 1)).astype(a.dtype)
        mask = np.where(start >= bits, a.dtype.type(0), _low_bits(count, bits) << inside)
        return (b & ~mask) | ((a << inside) & mask)

    return read.compute(function, [kind, kind, "u32", "u32"], kind)


def _population(read: InstructionReader) -> Step:
    kind = read.kind("b32", "b64")
    return read.compute(lambda a: _count_bits(a).astype(np.uint32), [kind], "u32")


def _count_bits(a: Array) -> Array:
    octets = np.ascontiguousarray(a)[..., None].view(np.uint8)
    return np.unpackbits(octets, axis=-1).sum(-1, dtype=np.uint32)


def _smeared(a: Array) -> Array:
    """Returns unsigned words with every bit below the highest set one set too."""
    step = 1
    while step < 8 * a.dtype.itemsize:
        a = a | a >> a.dtype.type(step)
        step *= 2
    return a


def _leading_zeros(read: InstructionReader) -> Step:
    kind = read.kind("b32", "b64")
    bits = np.uint32(8 * BYTES[kind])
    return read.compute(lambda a: bits - _count_bits(_smeared(a)), [kind], "u32")


def _find_leading(read: InstructionReader) -> Step:
    """bfind: the position of the highest bit that is no copy of the sign, all bits set if there is none."""
    from_top = read.flag("shiftamt")
    kind = read.kind("u32", "s32", "u64", "s64")
    bits = 8 * BYTES[kind]

    def function(a: Array) -> Array:
        if kind[0] == "s":
            a = np.where(a >> a.dtype.type(bits - 1) == 1, ~a, a)
        position = _count_bits(_smeared(a)) - np.uint32(1)
        none = ~np.uint32(0)
        return np.where(position == none, none, np.uint32(bits - 1) - position) if from_top else position

    return read.compute(function, [f"u{bits}"], "u32")


def _reverse(read: InstructionReader) -> Step:
    kind = read.kind("b32", "b64")

    def function(a: Array) -> Array:
        octets = np.ascontiguousarray(a)[..., None].view(np.uint8)
        bits = np.unpackbits(octets, axis=-1, bitorder="little")[..., ::-1]
        return np.packbits(bits, axis=-1, bitorder="little").view(a.dtype)[..., 0]

    return read.compute(function, [kind], kind)


def _permute(read: InstructionReader) -> Step:
    """prmt: each nibble of the selector names a byte of b and a; its top bit asks for copies of that byte's sign."""
    kind = read.kind("b32")

    def function(a: Array, b: Array, selector: Array) -> Array:
        both = b.astype(np.uint64) << np.uint64(32) | a
        result = np.zeros(np.broadcast_shapes(both.shape, selector.shape), np.uint32)
        for number in range(4):
            nibble = (selector >> np.uint32(4 * number)).astype(np.uint64)
            octet = (both >> ((nibble & np.uint64(7)) << np.uint64(3))).astype(np.uint32) & np.uint32(0xFF)
            sign = np.where(octet & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
            result |= np.where(nibble & np.uint64(8), sign, octet) << np.uint32(8 * number)
        return result

    return read.compute(function, [kind] * 3, kind)


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {
    "and": _logic(np.bitwise_and),
    "or": _logic(np.bitwise_or),
    "xor": _logic(np.bitwise_xor),
    "not": _logic(np.invert),
    "lop3": _lookup,
    "shl": _shift_left,
    "shr": _shift_right,
    "shf": _funnel_shift,
    "bfe": _extract,
    "bfi": _insert,
    "popc": _population,
    "clz": _leading_zeros,
    "bfind": _find_leading,
    "brev": _reverse,
    "prmt": _permute,
}
