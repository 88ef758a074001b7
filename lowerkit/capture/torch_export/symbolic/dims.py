"""Symbolic dims: from the sympy expressions of torch.export to the expressions of the signature."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowerkit.capture.torch_export.symbolic.expressions import InexpressibleError, to_condition, to_expression
from lowerkit.errors import UnsupportedError
from lowerkit.runtimes.conditions import Condition
from lowerkit.runtimes.expressions import Expr, ExpressionError, evaluate, solve
from lowerkit.runtimes.manifest import Dim

if TYPE_CHECKING:
    import sympy

_CONSTANT_DIM = (1 << 62) - 1
"""Bounds at or beyond this are infinity in what torch.export reports."""


def is_static(extent: Any) -> bool:
    """Whether an extent of a traced tensor is a number; torch's types call the symbolic ones ``int`` too.

    A symbol whose size the model fixes (``Dim.AUTO`` of the channels of a batch norm) stays a symbol to its type: its
    expression is the number, and ``int`` gives it.
    """
    return isinstance(extent, int) or bool(extent.node.expr.is_Integer)


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
        open_extents = [
            (name, axis, extent.node.expr)
            for name, shape in inputs
            for axis, extent in enumerate(shape)
            if not is_static(extent)
        ]
        for name, axis, extent in open_extents:
            if extent.is_Symbol and extent not in self._names:
                stem = names.get(f"{name}:{axis}") or f"{_identifier(name)}_{axis}"
                self._add(extent, stem, ranges)
        for name, axis, extent in open_extents:  # 2 * s + 1 tells s, too
            unnamed = [symbol for symbol in extent.free_symbols if symbol not in self._names]
            if len(extent.free_symbols) == 1 and unnamed and self._is_linear(extent):
                self._add(unnamed[0], f"{_identifier(name)}_{axis}_part", ranges)

    def _add(self, symbol: sympy.Symbol, stem: str, ranges: Mapping[Any, Any]) -> None:
        taken = set(self._names.values())
        chosen = stem if stem not in taken else f"{stem}_{len(taken)}"
        self._names[symbol] = chosen
        minimum, maximum = _bounds(ranges.get(symbol))
        self.dims.append(Dim(chosen, minimum, maximum))

    @staticmethod
    def _is_linear(extent: sympy.Expr) -> bool:
        """Whether a run can tell the symbol from the extent."""
        try:
            expression = to_expression(extent, lambda _symbol: "s")
            return solve(expression, evaluate(expression, {"s": 3})) == ("s", 3)
        except (InexpressibleError, ExpressionError):
            return False

    def shape(self, shape: Sequence[Any], what: str) -> list[Expr]:
        """Returns a shape as expressions.

        Raises:
            UnsupportedError: LK4002, an extent depends on data or is no integer expression of the inputs' dims.
        """
        return [int(extent) if is_static(extent) else self._expr(extent.node.expr, what) for extent in shape]

    def condition(self, expression: sympy.Basic, location: str = "") -> Condition | bool:
        """Returns a guard of torch's as a condition; a bool where it is the same for all sizes.

        Raises:
            UnsupportedError: LK4002, it is no condition on integer expressions of the inputs' dims.
        """
        try:
            return to_condition(expression, self._names.get)
        except InexpressibleError as error:
            raise _unchecked(str(expression), error, location) from None

    def at_least(self, extent: sympy.Expr, least: int, location: str = "") -> Condition | bool:
        """Returns the condition that ``extent`` is no less than ``least``; a bool where it is a number.

        Raises:
            UnsupportedError: LK4002, it is no integer expression of the inputs' dims.
        """
        try:
            found = to_expression(extent, self._names.get)
        except InexpressibleError as error:
            raise _unchecked(f"{extent} >= {least}", error, location) from None
        return found >= least if isinstance(found, int) else ("le", least, found)

    def _expr(self, expression: sympy.Expr, what: str) -> Expr:
        try:
            return to_expression(expression, self._names.get)
        except InexpressibleError:
            raise UnsupportedError(
                "LK4002",
                f"the shape of {what} is {expression}, which is no integer expression of the inputs' dims",
                hint="give the model inputs of fixed shape, or remove what makes a shape depend on values",
            ) from None


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _unchecked(condition: str, error: InexpressibleError, location: str) -> UnsupportedError:
    return UnsupportedError(
        "LK4002",
        f"the model holds under the condition {condition}, which cannot be checked at a call: "
        f"{error} is no integer expression of the inputs' dims",
        location=location or None,
        hint="give the dims that it depends on fixed sizes",
    )


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
