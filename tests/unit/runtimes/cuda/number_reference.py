"""What instructions give, by exact arithmetic on single numbers: the other side of every comparison."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# Bits of the mantissa that are stored, and of the exponent.
FORMATS = {"f16": (10, 5), "bf16": (7, 8), "f32": (23, 8), "f64": (52, 11)}
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def bits_of(kind: str) -> int:
    """Bits of a type."""
    return int("".join(character for character in kind if character.isdigit()))


def decode(bits: int, kind: str) -> float:
    """The value of the bits of a float."""
    if kind == "bf16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    code, integer = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}[kind]
    return struct.unpack(code, struct.pack(integer, bits))[0]


def encode(value: Fraction | float, kind: str, mode: str = "rn", zero_sign: bool = False) -> int:
    """The bits of a value rounded once to a float type; ``zero_sign`` is that of an exact zero."""
    mantissa, exponent_bits = FORMATS[kind]
    sign_bit = 1 << (mantissa + exponent_bits)
    infinity = ((1 << exponent_bits) - 1) << mantissa
    if isinstance(value, float):
        if math.isnan(value):
            return NAN.get(kind, infinity | 1 << (mantissa - 1))
        if math.isinf(value):
            return infinity | (sign_bit if value < 0 else 0)
        zero_sign = math.copysign(1, value) < 0
        value = Fraction(value)
    if value.numerator == 0:
        return sign_bit if zero_sign else 0
    negative, size = value < 0, abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, 2 - (1 << (exponent_bits - 1))) - mantissa)
    units, rest = divmod(size, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and units % 2 == 1),
        "rz": False,
        "rm": rest > 0 and negative,
        "rp": rest > 0 and not negative,
    }[mode]
    units += up
    largest = Fraction(2) ** ((1 << (exponent_bits - 1)) - 1) * (2 - Fraction(2) ** -mantissa)
    if units * unit > largest:
        overflows = mode == "rn" or (mode == "rm" and negative) or (mode == "rp" and not negative)
        bits = infinity if overflows else infinity - 1
    else:  # a subnormal has the exponent field 0, and one unit more than all ones is the next exponent
        lowest = 2 - (1 << (exponent_bits - 1))
        field = max(exponent, lowest) - lowest
        bits = (field << mantissa) + units
    return bits | (sign_bit if negative else 0)


def is_nan(bits: int, kind: str) -> bool:
    """Whether the bits are a NaN."""
    return math.isnan(decode(bits, kind))


def flushed(bits: int) -> int:
    """The bits of an f32 with a subnormal value replaced by zero."""
    return bits if bits & 0x7F800000 else bits & 0x80000000


def edge_values(kind: str) -> list[int]:
    """Bits of values at which instructions tend to be wrong."""
    bits = bits_of(kind)
    if kind not in FORMATS:
        shifts = [1, 2, 7, 8, 15, 31, 32, 63]
        edges = [0, 1, 2, 3, (1 << bits) - 1, (1 << bits) - 2, 1 << (bits - 1), (1 << (bits - 1)) - 1]
        return sorted({value & ((1 << bits) - 1) for value in edges + [1 << shift for shift in shifts]})
    mantissa, exponent_bits = FORMATS[kind]
    one = ((1 << (exponent_bits - 1)) - 1) << mantissa
    infinity = ((1 << exponent_bits) - 1) << mantissa
    half = 1 << (mantissa - 1)
    positive = [0, 1, 2, (1 << mantissa) - 1, 1 << mantissa, (1 << mantissa) + 1, one - 1, one, one + 1, one + half]
    positive += [one + (1 << mantissa), one + 5 * half, infinity - 1, infinity, infinity + 1, infinity | half]
    sign = 1 << (bits - 1)
    return positive + [value | sign for value in positive]


def random_bits(kind: str, count: int) -> list[int]:
    """Random bits; half of the floats lie near 1, so that sums cancel and round."""
    bits = bits_of(kind)
    values = [random.getrandbits(bits) for _ in range(count)]
    if kind in FORMATS:
        mantissa, exponent_bits = FORMATS[kind]
        bias = (1 << (exponent_bits - 1)) - 1
        near = random.sample(range(count), count // 2)
        for number in near:
            field = bias + random.randint(-4, 4)
            values[number] = random.getrandbits(1) << (bits - 1) | field << mantissa | random.getrandbits(mantissa)
    return values


def operands(kinds: list[str], count: int = 400) -> list[list[int]]:
    """One list of bits for each type: pairs of edge values of the first two, then random ones."""
    first = edge_values(kinds[0])
    if len(kinds) == 1:
        columns = [first]
    else:
        second = edge_values(kinds[1])
        columns = [[a for a in first for _ in second], [b for _ in first for b in second]]
        for kind in kinds[2:]:
            columns.append([random.choice(edge_values(kind)) for _ in columns[0]])
    return [column + random_bits(kind, count) for kind, column in zip(kinds, columns, strict=True)]


def as_array(values: list[int], kind: str) -> Array:
    """Bits as an array of unsigned integers."""
    return np.array(values, np.dtype(f"u{bits_of(kind) // 8}"))


def signed(value: int, bits: int) -> int:
    """The value of bits in two's complement."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def mapped(function: Callable[..., int], columns: list[list[int]]) -> list[int]:
    """The function of each row."""
    return [function(*row) for row in zip(*columns, strict=True)]
