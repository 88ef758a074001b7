"""Symbolic dims: from the sympy expressions of torch.export to the expressions of the signature."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowerkit.errors import UnsupportedError
from lowerkit.runtimes.expressions import Expr, simplify
from lowerkit.runtimes.manifest import Dim

if TYPE_CHECKING:
    import sympy

_OPERATORS = {
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "Mod": "mod",
    "PythonMod": "mod",
    "Max": "max",
    "Min": "min",
}
_CONSTANT_DIM = (1 << 62) - 1
"""Bounds at or beyond this are infinity in what torch.export reports."""


def is_static(extent: Any) -> bool:
    """Whether an extent of a traced tensor is a number; torch's types call the symbolic ones ``int`` too."""
    return isinstance(extent, int)


class SymbolNames:
    """Gives each shape symbol of an exported program a name that users know, and its range.

    A symbol takes the name of the ``torch.export.Dim`` that made it; one without takes ``<input>_<axis>`` of the
    first input that carries it.
    """

    def __init__(
        self, ranges: Mapping[Any, Any], inputs: Sequence[tuple[str, Sequence[Any]]], names: Mapping[str, str]
    ) -> None:
        """``ranges``: bounds by symbol; ``inputs``: name and shape of each input; ``names``: what the user called
        ``"<input>:<axis>"``.
        """
        self._names: dict[sympy.Symbol, str] = {}
        self.dims: list[Dim] = []
        for name, shape in inputs:
            for axis, extent in enumerate(shape):
                if isinstance(extent, int):
                    continue
                symbol = extent.node.expr
                if not symbol.is_Symbol or symbol in self._names:
                    continue
                stem = names.get(f"{name}:{axis}") or f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{axis}"
                taken = set(self._names.values())
                chosen = stem if stem not in taken else f"{stem}_{len(taken)}"
                self._names[symbol] = chosen
                minimum, maximum = _bounds(ranges.get(symbol))
                self.dims.append(Dim(chosen, minimum, maximum))

    def shape(self, shape: Sequence[Any], what: str) -> list[Expr]:
        """Returns a shape as expressions.

        Raises:
            UnsupportedError: LK4002, an extent depends on data or is no integer expression of the inputs' dims.
        """
        return [extent if isinstance(extent, int) else self._expr(extent.node.expr, what) for extent in shape]

    def _expr(self, expression: sympy.Expr, what: str) -> Expr:
        found = self._translate(expression)
        if found is None:
            raise UnsupportedError(
                "LK4002",
                f"the shape of {what} is {expression}, which is no integer expression of the inputs' dims",
                hint="give the model inputs of fixed shape, or remove what makes a shape depend on values",
            )
        return simplify(found)

    def _translate(self, expression: Any) -> Expr | None:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self._names.get(expression)
        kind = type(expression).__name__
        parts = [self._translate(part) for part in expression.args]
        if any(part is None for part in parts):
            return self._ratio(expression) if kind == "Mul" else None
        values: list[Expr] = [part for part in parts if part is not None]
        if kind in ("Add", "Mul"):
            return _fold("add" if kind == "Add" else "mul", values)
        if kind == "Pow" and isinstance(values[1], int) and values[1] > 0:
            return _fold("mul", [values[0]] * values[1])
        if kind in ("Max", "Min"):
            return _fold(_OPERATORS[kind], values)
        if kind in _OPERATORS:
            return (_OPERATORS[kind], values[0], values[1])
        if kind == "ModularIndexing":
            return ("mod", ("floordiv", values[0], values[1]), values[2])
        if kind in ("CeilToInt", "FloorToInt", "TruncToInt", "Identity"):
            return values[0]
        return None

    def _ratio(self, expression: Any) -> Expr | None:
        """``s * (1/2)``, exact by construction."""
        numerator, denominator = expression.as_numer_denom()
        if denominator == 1:
            return None
        top, bottom = self._translate(numerator), self._translate(denominator)
        return None if top is None or bottom is None else ("floordiv", top, bottom)


def _fold(operator: str, values: Sequence[Expr]) -> Expr:
    result = values[0]
    for value in values[1:]:
        result = (operator, result, value)
    return result


def _bounds(bounds: Any) -> tuple[int, int | None]:
    if bounds is None:
        return 1, None
    minimum = _integer(bounds.lower)
    maximum = _integer(bounds.upper)
    return max(minimum or 0, 0), maximum


def _integer(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return None if abs(number) >= _CONSTANT_DIM else number
