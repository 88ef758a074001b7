"""LLVM IR text as the bindings' LLVM (24) prints it, made readable for llvmlite's parser (22).

Text of a newer LLVM is not promised to parse in an older one. What differs in the IR of kernels is listed here; a
construct that is not fails loudly in the parser, and a corpus test compiles one of each.

Float literals: where a short decimal reads back as the same value *of its type*, LLVM 24 prints it; LLVM 22 demands
that the decimal is exact (0.1 is no float). Otherwise LLVM 24 prints ``f0x`` and the bits of the literal's own type,
and ``+inf``, ``-qnan``, ``+nan(0x1)`` (quiet, with payload) or ``+snan(0x1)``. All of these become bits as LLVM 22
wants them: ``0x`` and those of the *double* of the value for float and double, ``0xH`` for half and ``0xR`` for
bfloat.
"""

from __future__ import annotations

import re
import struct

_LITERAL = re.compile(
    r"(?<=[\s(,\[<])(?:"
    r"f0x(?P<bits>[0-9A-Fa-f]+)"
    r"|(?P<sign>[+-])(?P<kind>inf|qnan|s?nan\((?P<payload>0x[0-9A-Fa-f]+)\))"
    r"|(?P<decimal>[+-]?[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?)"
    r")(?=[\s),\]>]|$)"
)
_TYPE = re.compile(r"\b(half|bfloat|float|double)\b")

# type -> (bits, mantissa bits)
_FORMATS = {"half": (16, 10), "bfloat": (16, 7), "float": (32, 23), "double": (64, 52)}


def to_llvm_22(text: str) -> str:
    """Returns ``text`` in the spelling of LLVM 22; the program is the same, bit for bit."""
    return "\n".join(_LITERAL.sub(_old_literal, line) for line in text.split("\n"))


def _old_literal(match: re.Match[str]) -> str:
    # The type stands before the literal: its own, or for a second operand that of the first.
    types = _TYPE.findall(match.string, 0, match.start())
    kind = types[-1] if types else "double"
    if match["decimal"]:
        if kind == "double":
            return match[0]
        bits = _rounded(kind, float(match["decimal"]))
    else:
        bits = int(match["bits"], 16) if match["bits"] else _special(kind, match)
    if kind == "half":
        return f"0xH{bits:04X}"
    if kind == "bfloat":
        return f"0xR{bits:04X}"
    return f"0x{_double_bits(bits) if kind == 'float' else bits:016X}"


def _rounded(kind: str, value: float) -> int:
    """Returns the bits of ``value`` rounded to ``kind``."""
    if kind == "half":
        return struct.unpack("<H", struct.pack("<e", value))[0]
    single = struct.unpack("<I", struct.pack("<f", value))[0]
    if kind == "float":
        return single
    return (single + 0x7FFF + (single >> 16 & 1)) >> 16


def _special(kind: str, match: re.Match[str]) -> int:
    """Returns the bits of an infinity or NaN of type ``kind``."""
    width, mantissa = _FORMATS[kind]
    bits = ((1 << width - 1 - mantissa) - 1) << mantissa
    if match["kind"] != "inf":
        quiet = 0 if match["kind"].startswith("snan") else 1 << mantissa - 1
        bits |= quiet | int(match["payload"] or "0", 16)
    return bits | (1 << width - 1 if match["sign"] == "-" else 0)


def _double_bits(single: int) -> int:
    """Returns the bits of the double that equals a float given by its bits (NaN payloads kept)."""
    sign, exponent, mantissa = single >> 31, single >> 23 & 0xFF, single & 0x7FFFFF
    if exponent == 0xFF:
        return sign << 63 | 0x7FF << 52 | mantissa << 29
    return struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", single))[0]))[0]
