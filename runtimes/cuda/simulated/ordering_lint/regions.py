"""Where in shared memory an access may lie, as far as the text says: from a symbol on, between two offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lowerkit.runtimes.cuda.simulated.ordering_lint.operands import Origins
from lowerkit.runtimes.cuda.simulated.text.syntax import Instruction, Name, Number, Operand, Scope

_DEEPEST = 64  # definitions of definitions
_MOST_THREADS = 1024
_WIDENING = (("u64", "u32"), ("s64", "s32"))


@dataclass(frozen=True)
class Region:
    """Bytes from ``low`` up to and without ``high`` (None: no end is known) behind a symbol; or such values."""

    base: str
    low: int
    high: int | None

    def apart(self, other: Region) -> bool:
        """Returns whether the two are known to have no byte in common."""
        if self.base != other.base:
            return False
        before = self.high is not None and self.high <= other.low
        return before or (other.high is not None and other.high <= self.low)


class Regions:
    """What values may be: registers with one definition each, through operations that keep a range."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins

    def of(self, operand: Operand, scope: Scope, deep: int = 0) -> Region | None:
        """Returns the values of an operand (``high`` is one more than the largest); None if nothing is known."""
        if isinstance(operand, Number):
            return Region("", operand.value, operand.value + 1)
        if not isinstance(operand, Name) or deep > _DEEPEST:
            return None
        if operand.text == "%tid.x":
            return Region("", 0, _MOST_THREADS)
        definition = self._origins.definition(operand.text, scope)
        if definition is None:
            known = not operand.text.startswith("%") and self._origins.is_symbol(operand.text, scope)
            return Region(operand.text, operand.offset, operand.offset + 1) if known else None
        function = _FUNCTIONS.get(definition.opcode)
        if function is None:
            return None
        values = [self.of(each, definition.scope, deep + 1) for each in definition.operands[1:]]
        return function(definition, values)


Values = list[Region | None]


def _same(definition: Instruction, values: Values) -> Region | None:
    if definition.opcode == "cvt" and definition.modifiers not in _WIDENING:
        return None
    found = values[0]
    return found if found is not None and found.low >= 0 else None


def _sum(_: Instruction, values: Values) -> Region | None:
    a, b = values[:2]
    if a is None or b is None or a.high is None or b.high is None or (a.base and b.base):
        return None
    return Region(a.base or b.base, a.low + b.low, a.high + b.high - 1)


def _masked(_: Instruction, values: Values) -> Region | None:
    """No more than either side, if that is not negative."""
    ends = [each.high for each in values[:2] if each is not None and not each.base and each.low >= 0 and each.high]
    return Region("", 0, min(ends)) if ends else None


def _joined(_: Instruction, values: Values) -> Region | None:
    """Bits of both sides: below the next power of two."""
    largest = 0
    for each in values[:2]:
        if each is None or each.base or each.low < 0 or each.high is None:
            return None
        largest = max(largest, each.high - 1)
    return Region("", 0, 1 << largest.bit_length())


def _shifted(definition: Instruction, values: Values) -> Region | None:
    a, by = values[:2]
    if (
        a is None
        or a.base
        or a.low < 0
        or a.high is None
        or not isinstance(definition.operands[2], Number)
        or by is None
    ):
        return None
    if definition.opcode == "shl":
        return Region("", a.low << by.low, ((a.high - 1) << by.low) + 1)
    return Region("", a.low >> by.low, ((a.high - 1) >> by.low) + 1)


def _either(_: Instruction, values: Values) -> Region | None:
    a, b = values[:2]
    if a is None or b is None or a.base != b.base or a.high is None or b.high is None:
        return None
    return Region(a.base, min(a.low, b.low), max(a.high, b.high))


_FUNCTIONS: Mapping[str, Callable[[Instruction, Values], Region | None]] = {
    "mov": _same, "cvt": _same, "cvta": _same, "add": _sum, "and": _masked, "or": _joined, "xor": _joined,
    "shl": _shifted, "shr": _shifted, "selp": _either,
}  # fmt: skip
