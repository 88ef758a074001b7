"""What the expressions of an artifact can become, given the ranges of the symbolic dims: interval arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lowerkit.runtimes.conditions import Condition
from lowerkit.runtimes.expressions import INT64_MAX, Expr, ExpressionError
from lowerkit.runtimes.manifest import Dim

Range = tuple[int, int]


def ranges_of(dims: Iterable[Dim], *, at_least: int = 0) -> dict[str, Range]:
    """Returns the range of each dim; ``at_least`` leaves smaller values out of consideration."""
    return {dim.name: (max(dim.minimum, at_least), INT64_MAX if dim.maximum is None else dim.maximum) for dim in dims}


def bounds(expr: Expr, ranges: Mapping[str, Range]) -> Range:
    """Returns the least and the greatest value that ``expr`` may take; never too narrow, sometimes too wide.

    Args:
        expr: without ``("dim", i)``: an expression of a manifest.
        ranges: the inclusive range of each dim.

    Raises:
        ExpressionError: a dim has no range, or a divisor may be zero or negative.
    """
    if isinstance(expr, int):
        return expr, expr
    if isinstance(expr, str):
        if expr not in ranges:
            raise ExpressionError(f"the dim {expr!r} has no range")
        return ranges[expr]
    if len(expr) == 2:
        raise ExpressionError(f"{expr!r} stands for no value of a manifest")
    operator = expr[0]
    a, b = bounds(expr[1], ranges), bounds(expr[2], ranges)
    match operator:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case _:
            if b[0] < 1:
                raise ExpressionError(f"the divisor of {operator} may be {b[0]}")
            if operator == "mod":
                return (a[0], a[1]) if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)
            sign = -1 if operator == "ceildiv" else 1
            corners = [sign * ((sign * x) // y) for x in a for y in b]
            return min(corners), max(corners)


def decided(condition: Condition, ranges: Mapping[str, Range]) -> bool | None:
    """Returns whether a condition holds for all values in the ranges (True), for none (False), or it depends (None)."""
    head = condition[0]
    if head == "not":
        inner = decided(condition[1], ranges)
        return None if inner is None else not inner
    if head in ("and", "or"):
        parts = {decided(condition[1], ranges), decided(condition[2], ranges)}
        decisive = head == "or"
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    try:
        low, high = bounds(("sub", condition[1], condition[2]), ranges)
    except ExpressionError:
        return None
    match head:
        case "lt":
            return True if high < 0 else False if low >= 0 else None
        case "le":
            return True if high <= 0 else False if low > 0 else None
        case _:
            equal = True if low == high == 0 else False if low > 0 or high < 0 else None
            return equal if head == "eq" or equal is None else not equal
