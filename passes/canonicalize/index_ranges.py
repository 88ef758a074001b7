"""Ranges of index values: what an extent can be at least and at most, from the ranges of the signature's dims.

PyTorch lets sizes and positions be negative, counted from the end, and clamps them; conversions spell that out in
comparisons, selections and clamps of extents. With ranges most of it is decided: an extent is never negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from lowerkit.mlir import ir
from lowerkit.passes.canonicalize.origins import origin
from lowerkit.passes.rewriting import DYNAMIC, constant_int, defining_op, shape_of

Range: TypeAlias = tuple[int | None, int | None]
"""Least and greatest value, inclusive; None is not known."""

UNKNOWN: Range = (None, None)
_SAME = frozenset({"arith.index_cast", "arith.extsi"})
_SIGNED = ("eq", "ne", "slt", "sle", "sgt", "sge")
_PREDICATES = (*_SIGNED, "ult", "ule", "ugt", "uge")


class IndexRanges:
    """Ranges of the integer values of ``@main``.

    Args:
        extents: (number of an argument, axis) -> range of that extent.
    """

    def __init__(self, extents: Mapping[tuple[int, int], tuple[int, int | None]]) -> None:
        self._extents = extents

    def range(self, value: ir.Value) -> Range:
        """Returns the range of an integer or index scalar."""
        number = constant_int(value)
        if number is not None:
            return number, number
        op = defining_op(value)
        if op is None:
            return UNKNOWN
        if op.name == "tensor.dim":
            return self._extent(op)
        if op.name in _SAME:
            return self.range(op.operands[0])
        if op.name == "arith.select":
            condition = constant_int(op.operands[0])
            if condition is not None:
                return self.range(op.operands[1 if condition else 2])
            return _union(self.range(op.operands[1]), self.range(op.operands[2]))
        rule = _ARITHMETIC.get(op.name)
        return UNKNOWN if rule is None else rule(self.range(op.operands[0]), self.range(op.operands[1]))

    def compare(self, op: ir.Operation) -> bool | None:
        """Returns what an ``arith.cmpi`` always is, None where it depends."""
        name = _PREDICATES[ir.IntegerAttr(op.attributes["predicate"]).value]
        left, right = self.range(op.operands[0]), self.range(op.operands[1])
        if name.startswith("u"):
            if not (_at_least(left, 0) and _at_least(right, 0)):
                return None
            name = "s" + name[1:]
        if name in ("sgt", "sge"):
            left, right, name = right, left, {"sgt": "slt", "sge": "sle"}[name]
        return _COMPARISONS[name](left, right)

    def _extent(self, op: ir.Operation) -> Range:
        axis = constant_int(op.operands[1])
        if axis is None:
            return 0, None
        value, axis = origin(op.operands[0], axis)
        extent = shape_of(value)[axis]
        if extent != DYNAMIC:
            return extent, extent
        if isinstance(value.owner, ir.Block):
            return self._extents.get((ir.BlockArgument(value).arg_number, axis), (0, None))
        return 0, None


def _at_least(found: Range, number: int) -> bool:
    return found[0] is not None and found[0] >= number


def _union(one: Range, other: Range) -> Range:
    low = None if one[0] is None or other[0] is None else min(one[0], other[0])
    high = None if one[1] is None or other[1] is None else max(one[1], other[1])
    return low, high


def _add(one: Range, other: Range) -> Range:
    low = None if one[0] is None or other[0] is None else one[0] + other[0]
    high = None if one[1] is None or other[1] is None else one[1] + other[1]
    return low, high


def _subtract(one: Range, other: Range) -> Range:
    return _add(one, (None if other[1] is None else -other[1], None if other[0] is None else -other[0]))


def _multiply(one: Range, other: Range) -> Range:
    if not (_at_least(one, 0) and _at_least(other, 0)):
        return UNKNOWN
    assert one[0] is not None and other[0] is not None  # noqa: PT018
    return one[0] * other[0], None if one[1] is None or other[1] is None else one[1] * other[1]


def _divide(one: Range, other: Range) -> Range:
    """Division of what is not negative by a positive constant, rounded down."""
    divisor = other[0]
    if divisor is None or divisor != other[1] or divisor < 1 or not _at_least(one, 0):
        return UNKNOWN
    assert one[0] is not None
    return one[0] // divisor, None if one[1] is None else one[1] // divisor


def _remainder(one: Range, other: Range) -> Range:
    return (0, other[1] - 1) if _at_least(one, 0) and _at_least(other, 1) and other[1] is not None else UNKNOWN


def _minimum(one: Range, other: Range) -> Range:
    low = None if one[0] is None or other[0] is None else min(one[0], other[0])
    highs = [high for high in (one[1], other[1]) if high is not None]
    return low, min(highs, default=None)


def _maximum(one: Range, other: Range) -> Range:
    lows = [low for low in (one[0], other[0]) if low is not None]
    high = None if one[1] is None or other[1] is None else max(one[1], other[1])
    return max(lows, default=None), high


def _less(one: Range, other: Range) -> bool | None:
    if one[1] is not None and other[0] is not None and one[1] < other[0]:
        return True
    return False if one[0] is not None and other[1] is not None and one[0] >= other[1] else None


def _less_or_equal(one: Range, other: Range) -> bool | None:
    reverse = _less(other, one)
    return None if reverse is None else not reverse


def _equal(one: Range, other: Range) -> bool | None:
    if one == other and None not in one and one[0] == one[1]:
        return True
    return False if _less(one, other) or _less(other, one) else None


def _unequal(one: Range, other: Range) -> bool | None:
    equal = _equal(one, other)
    return None if equal is None else not equal


_ARITHMETIC: dict[str, Callable[[Range, Range], Range]] = {
    "arith.addi": _add,
    "arith.subi": _subtract,
    "arith.muli": _multiply,
    "arith.divsi": _divide,
    "arith.divui": _divide,
    "arith.floordivsi": _divide,
    "arith.remsi": _remainder,
    "arith.remui": _remainder,
    "arith.minsi": _minimum,
    "arith.maxsi": _maximum,
}
_COMPARISONS: dict[str, Callable[[Range, Range], bool | None]] = {
    "eq": _equal,
    "ne": _unequal,
    "slt": _less,
    "sle": _less_or_equal,
}
