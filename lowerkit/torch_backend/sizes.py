"""Numbers of a graph: expressions of symbols, and their values in a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils import _pytree as pytree

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_CALLS_KEPT = 256


def expression_of(value: Any) -> Any:
    """Returns a number, symbolic or not, as sympy's expression."""
    return value.node.expr if isinstance(value, _SYMBOLIC) else sympy.sympify(value)


def is_symbolic(value: Any) -> bool:
    """Whether a number differs from call to call."""
    return isinstance(value, _SYMBOLIC) and bool(value.node.expr.free_symbols)


def is_size(value: Any) -> bool:
    """Whether a symbolic number can be an extent: it is an integer that is never negative."""
    if not isinstance(value, torch.SymInt):
        return False
    bounds = value.node.shape_env.bound_sympy(value.node.expr)
    return bool(bounds.lower >= 0)


def fake_mode(nodes: Sequence[fx.Node]) -> Any:
    """Returns the mode that made the fake values of a graph; None where it has none."""
    for node in nodes:
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            mode = getattr(leaf, "fake_mode", None)
            if mode is not None:
                return mode
    return None


@dataclass
class SymbolReader:
    """Finds the values of symbols in the arguments of a call, and those of expressions of them.

    Attributes:
        places: symbol to the index of the argument and, of a tensor, the axis.
    """

    places: dict[Any, tuple[int, int | None]]
    _known: dict[tuple[Any, ...], dict[Any, Any]] = field(default_factory=dict[tuple[Any, ...], dict[Any, Any]])

    @staticmethod
    def of(placeholders: Sequence[fx.Node]) -> SymbolReader:
        """Looks where each symbol stands by itself."""
        places: dict[Any, tuple[int, int | None]] = {}
        for index, node in enumerate(placeholders):
            value = node.meta.get("val")
            if is_symbolic(value) and expression_of(value).is_Symbol:
                places[expression_of(value)] = (index, None)
            elif isinstance(value, torch.Tensor):
                for axis, extent in enumerate(value.shape):
                    if is_symbolic(extent) and expression_of(extent).is_Symbol:
                        places.setdefault(expression_of(extent), (index, axis))
        return SymbolReader(places)

    def read(self, arguments: Sequence[Any]) -> Callable[[Any], Any]:
        """Returns what evaluates expressions for these arguments."""
        if not self.places:
            return _as_number
        values = tuple(
            arguments[index] if axis is None else arguments[index].shape[axis] for index, axis in self.places.values()
        )
        known = self._known.get(values)
        if known is None:
            if len(self._known) >= _CALLS_KEPT:
                self._known.clear()
            known = self._known[values] = {}
        by_symbol = dict(zip(self.places, values, strict=True))
        return lambda expression: _evaluate(expression, by_symbol, known)


def _evaluate(expression: Any, values: Mapping[Any, Any], known: dict[Any, Any]) -> Any:
    found = known.get(expression)
    if found is None:
        found = known[expression] = _as_number(expression.xreplace(values))
    return found


def _as_number(expression: Any) -> Any:
    if isinstance(expression, (int, float, bool)):
        return expression
    if expression.is_Boolean:
        return bool(expression)
    return int(expression) if expression.is_integer else float(expression)
