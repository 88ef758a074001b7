"""Guards of the signature as LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lowerkit.runtimes.conditions import Condition
from lowerkit.runtimes.expressions import Expr

_PREDICATES = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle"}


def _without_bad_divisors(condition: Condition) -> tuple[Condition, list[Expr]]:
    """Replaces what a condition divides by, where that may be 0, by at least 1; returns what was replaced too."""
    divisors: list[Expr] = []

    def replaced(part: Any) -> Any:
        if isinstance(part, (int, str)):
            return part
        inner = tuple(replaced(entry) for entry in part[1:])
        if part[0] in ("mod", "floordiv", "ceildiv") and not (isinstance(inner[1], int) and inner[1] > 0):
            divisors.append(inner[1])
            inner = (inner[0], ("max", inner[1], 1))
        return (part[0], *inner)

    return replaced(condition), divisors


def _outcome(condition: Condition, expression: Callable[[Expr], str], value: Callable[[str], str]) -> str:
    """Returns the SSA name of the outcome of a condition that divides by nothing below 1."""
    head = condition[0]
    if head == "not":
        return value(f"xor i1 {_outcome(condition[1], expression, value)}, true")
    if head in ("and", "or"):
        left, right = (_outcome(part, expression, value) for part in condition[1:])
        return value(f"{head} i1 {left}, {right}")
    left, right = expression(condition[1]), expression(condition[2])
    return value(f"icmp {_PREDICATES[head]} i64 {left}, {right}")


def failures(condition: Condition, expression: Callable[[Expr], str], value: Callable[[str], str]) -> Iterator[str]:
    """Yields SSA names that are true where a guard does not hold, or divides by what is not positive; in this order.

    Args:
        condition: of the guard.
        expression: writes an expression; returns its SSA name.
        value: writes an instruction; returns its SSA name.
    """
    safe, divisors = _without_bad_divisors(condition)
    for divisor in divisors:
        yield value(f"icmp slt i64 {expression(divisor)}, 1")
    yield value(f"xor i1 {_outcome(safe, expression, value)}, true")
