"""Names and types in kernel text: SSA values, element types with their widths, and literals.

An element is an MLIR scalar type by name (``f32``, ``bf16``, ``i64``, ``i1`` ...); ``lanes`` are the elements of a
vector, and one lane means a plain scalar.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

__all__ = ["POINTER", "Value", "bit_width", "element_bytes", "float_literal", "is_float", "vector_type"]

POINTER = "!llvm.ptr"
_BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1}


@dataclass(frozen=True)
class Value:
    """One SSA value: ``name`` with its percent sign, ``type`` as MLIR text."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name

    @property
    def lanes(self) -> int:
        """Number of elements; 1 for a scalar."""
        return int(self.type[7:].split("x", 1)[0]) if self.type.startswith("vector<") else 1

    @property
    def element(self) -> str:
        """Scalar type of the value."""
        return self.type[7:-1].split("x", 1)[1] if self.type.startswith("vector<") else self.type


def vector_type(element: str, lanes: int) -> str:
    """``vector<LANESxELEMENT>``, or the element itself for one lane."""
    return element if lanes == 1 else f"vector<{lanes}x{element}>"


def is_float(element: str) -> bool:
    """True for the floating point element types."""
    return element in ("f32", "f64", "f16", "bf16")


def element_bytes(element: str) -> int:
    """Bytes of one element in memory (``i1`` takes one)."""
    return max(1, bit_width(element) // 8)


def bit_width(element: str) -> int:
    """Bits of an element in a register."""
    return _BITS[element]


def float_literal(value: float, element: str) -> str:
    """Bit-exact MLIR literal of ``value`` rounded to ``element``."""
    if element == "f32":
        return f"0x{struct.unpack('<I', _pack_f32(value))[0]:08X}"
    if element == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if element == "f16":
        return f"0x{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    bits = struct.unpack("<I", _pack_f32(value))[0]
    rounded = 0x7FC0 if math.isnan(value) else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return f"0x{rounded & 0xFFFF:04X}"


def _pack_f32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
