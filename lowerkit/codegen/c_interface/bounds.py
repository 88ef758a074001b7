"""What the expressions of an artifact can become, given the ranges of the symbolic dims: interval arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from lowerkit.runtimes.expressions import Expr, ExpressionError

Range = tuple[int, int]


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
