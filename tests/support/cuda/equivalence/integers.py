"""What instructions on integers give for numbers that are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

_TYPE = re.compile(r"[sub](8|16|32|64)")
_TWO: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "min": min,
    "max": max,
}
_ORDERED: Mapping[str, frozenset[str]] = {
    "eq": frozenset({"eq"}), "ne": frozenset({"lt", "gt"}), "lt": frozenset({"lt"}), "le": frozenset({"lt", "eq"}),
    "gt": frozenset({"gt"}), "ge": frozenset({"gt", "eq"}), "lo": frozenset({"lt"}), "ls": frozenset({"lt", "eq"}),
    "hi": frozenset({"gt"}), "hs": frozenset({"gt", "eq"}), "equ": frozenset({"eq", "un"}),
    "neu": frozenset({"lt", "gt", "un"}), "ltu": frozenset({"lt", "un"}), "leu": frozenset({"lt", "eq", "un"}),
    "gtu": frozenset({"gt", "un"}), "geu": frozenset({"gt", "eq", "un"}), "num": frozenset({"lt", "eq", "gt"}),
    "nan": frozenset({"un"}),
}  # fmt: skip


def orders_of(opcode: str) -> frozenset[str] | None:
    """Returns the orders of two numbers for which a ``setp`` holds; None: it is none that is known."""
    parts = opcode.split(".")
    return _ORDERED.get(parts[1]) if len(parts) == 3 else None


def types_of(opcode: str) -> Sequence[str]:
    """Returns the types of integers that an opcode names, in its order."""
    return [part for part in opcode.split(".")[1:] if _TYPE.fullmatch(part)]


def signed(value: int, type_: str) -> int:
    """Returns the number that bits stand for in a type."""
    bits = int(type_[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_[0] == "s" and value >> (bits - 1) else value


def evaluate(opcode: str, values: Sequence[int]) -> int | None:
    """Returns the bits that an instruction on integers gives; None: it is none of those that are known.

    Args:
        opcode: with its modifiers.
        values: of its sources, as bits.
    """
    parts, types = opcode.split("."), types_of(opcode)
    name, modifiers = parts[0], [part for part in parts[1:] if part not in types]
    if not types:
        return None
    if name == "cvt" and len(types) == 2 and not modifiers and types[0] != "s8":  # a register holds its sign further up
        return _cut(signed(values[0], types[1]), types[0])
    if len(types) != 1:
        return None
    type_ = types[0]
    bits = int(type_[1:])
    numbers = [signed(each, type_) for each in values]
    if name in _TWO and len(values) == 2 and not modifiers:
        return _cut(_TWO[name](*numbers), type_)
    if name in ("not", "neg") and not modifiers:
        return _cut(~numbers[0] if name == "not" else -numbers[0], type_)
    if name in ("shl", "shr") and not modifiers:
        by = min(values[1] & 0xFFFFFFFF, bits)
        return _cut(numbers[0] << by if name == "shl" else numbers[0] >> by, type_)
    if name == "bfe" and type_[0] == "u":
        by, width = values[1] & 0xFF, values[2] & 0xFF
        return _cut(numbers[0] >> min(by, bits) & ((1 << width) - 1), type_)
    if name in ("mul", "mad") and modifiers in (["lo"], ["wide"]):
        found = numbers[0] * numbers[1]
        wide = f"{type_[0]}{2 * bits}" if modifiers == ["wide"] else type_
        return _cut(found + (signed(values[2], wide) if name == "mad" else 0), wide)
    return None


def _cut(number: int, type_: str) -> int:
    return number & ((1 << int(type_[1:])) - 1)
