"""Integer expressions over symbolic dims: the shapes, sizes and task counts of an artifact.

An expression is one of

- an ``int``,
- a ``str``: a dim of the signature, such as ``"batch"``,
- ``(op, a, b)`` with ``op`` in :data:`OPERATORS`,
- ``("dim", i)``: the i-th entry of a kernel's dims array. It occurs in kernel plans only;
  :func:`substitute` replaces it by the caller's expression when a step is made.

In JSON a tuple is an array: ``["mul", "batch", 768]``. Values are bounded to signed 64 bit, so a damaged or hostile
artifact cannot make the evaluator build numbers of a million digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    Expr: TypeAlias = int | str | tuple[str, "Expr"] | tuple[str, "Expr", "Expr"]
else:  # msgspec cannot resolve a recursive alias; `normalize` checks what lies inside
    Expr: TypeAlias = int | str | tuple

INT64_MAX = 2**63 - 1
MAXIMUM_DEPTH = 200

_Binary = Callable[[int, int], int]


class ExpressionError(ValueError):
    """An expression is malformed, names an unknown dim, divides by zero or leaves 64 bits."""


def _floor_divide(a: int, b: int) -> int:
    if b == 0:
        raise ExpressionError("division by zero")
    return a // b


def _ceil_divide(a: int, b: int) -> int:
    if b == 0:
        raise ExpressionError("division by zero")
    return -(-a // b)


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise ExpressionError("modulo by zero")
    return a % b


OPERATORS: Mapping[str, _Binary] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": _floor_divide,
    "ceildiv": _ceil_divide,
    "mod": _modulo,
    "min": min,
    "max": max,
}
"""The binary operators. Division and modulo round towards minus infinity, as Python's do."""

_COMMUTATIVE = frozenset({"add", "mul", "min", "max"})


def evaluate(expr: Expr, values: Mapping[str, int], dims: Sequence[int] = ()) -> int:
    """Returns the value of ``expr``.

    Args:
        expr: the expression.
        values: the value of each symbol.
        dims: the values of ``("dim", i)`` leaves.

    Raises:
        ExpressionError: for an unknown symbol, an unknown operator, a division by zero or a value beyond 64 bits.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        try:
            return values[expr]
        except KeyError:
            known = ", ".join(sorted(values)) or "none"
            raise ExpressionError(f"unknown dim {expr!r} (known: {known})") from None
    if len(expr) == 2:
        index = expr[1]
        if expr[0] != "dim" or not isinstance(index, int) or not 0 <= index < len(dims):
            raise ExpressionError(f"{expr!r} is not one of the {len(dims)} kernel dims")
        return dims[index]
    operator, left, right = expr
    function = OPERATORS.get(operator)
    if function is None:
        raise ExpressionError(f"unknown operator {operator!r} (known: {', '.join(OPERATORS)})")
    result = function(evaluate(left, values, dims), evaluate(right, values, dims))
    if not -INT64_MAX <= result <= INT64_MAX:
        raise ExpressionError(f"{to_text(expr)} does not fit 64 bits")
    return result


def simplify(expr: Expr) -> Expr:
    """Folds constants and removes neutral elements; constants move to the right of commutative operators.

    The value is unchanged for all dims for which ``expr`` has one.
    """
    if isinstance(expr, int | str) or len(expr) == 2:
        return expr
    operator, left, right = expr[0], simplify(expr[1]), simplify(expr[2])
    if isinstance(left, int) and isinstance(right, int):
        return evaluate((operator, left, right), {})
    if operator in _COMMUTATIVE and isinstance(left, int):
        left, right = right, left
    if isinstance(right, int):
        if (operator in ("add", "sub") and right == 0) or (operator in ("mul", "floordiv", "ceildiv") and right == 1):
            return left
        if (operator == "mul" and right == 0) or (operator == "mod" and right == 1):
            return 0
        if operator == "sub":  # one form for "plus a constant", so that chains fold
            return simplify(("add", left, -right))
        nested = isinstance(left, tuple) and len(left) == 3 and left[0] == operator and isinstance(left[2], int)
        if nested and operator in _COMMUTATIVE:
            _, inner, constant = cast("tuple[str, Expr, int]", left)
            return simplify((operator, inner, evaluate((operator, constant, right), {})))
    if left == right:
        if operator in ("min", "max"):
            return left
        if operator == "sub":
            return 0
    return (operator, left, right)


def substitute(expr: Expr, values: Mapping[str, Expr], dims: Sequence[Expr] = ()) -> Expr:
    """Replaces symbols by ``values`` (those not in it stay) and ``("dim", i)`` by ``dims[i]``; simplifies."""

    def replace(node: Expr) -> Expr:
        if isinstance(node, int):
            return node
        if isinstance(node, str):
            return values.get(node, node)
        if len(node) == 2:
            index = node[1]
            if node[0] != "dim" or not isinstance(index, int) or not 0 <= index < len(dims):
                raise ExpressionError(f"{node!r} is not one of the {len(dims)} kernel dims")
            return dims[index]
        return (node[0], replace(node[1]), replace(node[2]))

    return simplify(replace(expr))


def solve(expr: Expr, value: int) -> tuple[str, int] | None:
    """Returns the symbol and its value that give ``expr == value``, or None.

    Only chains of add, sub and mul with constants around one symbol are solved: those that an input's shape may hold
    (``2*s + 1``). None also where no integer solves it.
    """
    while not isinstance(expr, str):
        if isinstance(expr, int) or len(expr) == 2:
            return None
        operator, left, right = expr
        if operator in ("add", "mul") and isinstance(left, int):
            left, right = right, left
        if operator == "add" and isinstance(right, int):
            expr, value = left, value - right
        elif operator == "sub" and isinstance(right, int):
            expr, value = left, value + right
        elif operator == "sub" and isinstance(left, int):
            expr, value = right, left - value
        elif operator == "mul" and isinstance(right, int) and right != 0 and value % right == 0:
            expr, value = left, value // right
        else:
            return None
    return expr, value


def symbols(expr: Expr) -> Iterator[str]:
    """Yields the symbols of ``expr``, each as often as it occurs."""
    if isinstance(expr, str):
        yield expr
    elif not isinstance(expr, int) and len(expr) == 3:
        yield from symbols(expr[1])
        yield from symbols(expr[2])


def normalize(value: Any, depth: int = 0) -> Expr:
    """Turns decoded JSON (arrays as lists or tuples) into an expression of tuples.

    Raises:
        ExpressionError: where ``value`` is no expression, or is nested deeper than :data:`MAXIMUM_DEPTH`.
    """
    if isinstance(value, bool):
        raise ExpressionError("a boolean is not an expression")
    if isinstance(value, int | str):
        return value
    if depth > MAXIMUM_DEPTH:
        raise ExpressionError(f"an expression is nested deeper than {MAXIMUM_DEPTH}")
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        if len(items) == 3 and items[0] in OPERATORS:
            return (items[0], normalize(items[1], depth + 1), normalize(items[2], depth + 1))
        if len(items) == 2 and items[0] == "dim" and isinstance(items[1], int):
            return ("dim", items[1])
    raise ExpressionError(f"{value!r} is not an expression")


def to_text(expr: Expr) -> str:
    """Returns ``expr`` as people write it: ``(batch * 768)``, ``ceildiv(s, 16)``."""
    if isinstance(expr, int | str):
        return str(expr)
    if len(expr) == 2:
        return f"d{expr[1]}"
    operator, left, right = expr[0], to_text(expr[1]), to_text(expr[2])
    infix = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}.get(operator)
    return f"({left} {infix} {right})" if infix else f"{operator}({left}, {right})"
