"""Conditions on symbolic dims: under which a program was captured, and under which alone it is right.

A condition is ``(relation, a, b)`` with ``relation`` in :data:`RELATIONS` and two expressions
(:mod:`lowerkit.runtimes.expressions`), or ``("and", p, q)``, ``("or", p, q)``, ``("not", p)`` of conditions.
In JSON a tuple is an array: ``["eq", ["mod", "batch", 2], 0]``. Nothing of it is code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from lowerkit.runtimes.expressions import (
    MAXIMUM_DEPTH,
    Expr,
    ExpressionError,
    evaluate,
    normalize,
    simplify,
    symbols,
    to_text,
)

Condition: TypeAlias = tuple[Any, ...]
"""Tuples as above; :func:`normalize_condition` checks what lies inside."""

RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}

_OPPOSITES = {"eq": "ne", "ne": "eq"}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}


def holds(condition: Condition, values: Mapping[str, int]) -> bool:
    """Tells whether a condition holds for the values of the dims.

    ``and`` and ``or`` look at their second part only where the first does not decide.

    Raises:
        ExpressionError: for an unknown dim, a division by zero or a value beyond 64 bits.
    """
    relation = RELATIONS.get(condition[0])
    if relation is not None:
        return relation(evaluate(condition[1], values), evaluate(condition[2], values))
    if condition[0] == "not":
        return not holds(condition[1], values)
    if condition[0] == "and":
        return holds(condition[1], values) and holds(condition[2], values)
    if condition[0] == "or":
        return holds(condition[1], values) or holds(condition[2], values)
    raise ExpressionError(f"unknown condition {condition[0]!r}")


def normalize_condition(value: Any, depth: int = 0) -> Condition:
    """Turns decoded JSON (arrays as lists or tuples) into a condition of tuples.

    Raises:
        ExpressionError: where ``value`` is no condition, or is nested deeper than :data:`MAXIMUM_DEPTH`.
    """
    if depth > MAXIMUM_DEPTH:
        raise ExpressionError(f"a condition is nested deeper than {MAXIMUM_DEPTH}")
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if len(items) == 3 and items[0] in RELATIONS:
            return (items[0], normalize(items[1]), normalize(items[2]))
        if len(items) == 3 and items[0] in ("and", "or"):
            return (items[0], normalize_condition(items[1], depth + 1), normalize_condition(items[2], depth + 1))
        if len(items) == 2 and items[0] == "not":
            return ("not", normalize_condition(items[1], depth + 1))
    raise ExpressionError(f"{value!r} is not a condition")


def simplify_condition(condition: Condition) -> Condition | bool:
    """Folds what holds, or fails, for all values of the dims; pushes ``not`` into relations."""
    head = condition[0]
    if head == "not":
        inner = simplify_condition(condition[1])
        if isinstance(inner, bool):
            return not inner
        if inner[0] in _OPPOSITES:
            return (_OPPOSITES[inner[0]], inner[1], inner[2])
        if inner[0] in ("lt", "le"):
            return ("le" if inner[0] == "lt" else "lt", inner[2], inner[1])
        return ("not", inner)
    if head in ("and", "or"):
        left, right = simplify_condition(condition[1]), simplify_condition(condition[2])
        decided = head == "or"
        if isinstance(left, bool):
            return left if left == decided else right
        if isinstance(right, bool):
            return right if right == decided else left
        return left if left == right else (head, left, right)
    left, right = simplify(condition[1]), simplify(condition[2])
    if isinstance(left, int) and isinstance(right, int):
        return RELATIONS[head](left, right)
    if left == right:
        return head in ("eq", "le")
    return (head, left, right)


def condition_symbols(condition: Condition) -> Iterator[str]:
    """Yields the dims that a condition is about, each as often as it occurs."""
    for part in condition[1:]:
        yield from symbols(part) if condition[0] in RELATIONS else condition_symbols(part)


def condition_text(condition: Condition) -> str:
    """Returns a condition as people write it: ``batch % 2 == 0``."""
    head = condition[0]
    if head in RELATIONS:
        return f"{_plain(condition[1])} {_SIGNS[head]} {_plain(condition[2])}"
    if head == "not":
        return f"not ({condition_text(condition[1])})"
    return f"({condition_text(condition[1])}) {head} ({condition_text(condition[2])})"


def _plain(expr: Expr) -> str:
    """An expression without the brackets around the whole of it."""
    text = to_text(expr)
    return text[1:-1] if text.startswith("(") and not isinstance(expr, int | str) else text
