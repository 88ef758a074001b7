"""Extents that are not known as numbers, to count with: what an op costs as an expression over symbolic dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lowerkit.mlir import ir
from lowerkit.runtimes.expressions import Expr, simplify


@dataclass(frozen=True)
class Extent:
    """An expression that adds and multiplies as a number does."""

    expression: Expr

    def __mul__(self, other: Count) -> Extent:
        return Extent(simplify(("mul", self.expression, expression_of(other))))

    def __add__(self, other: Count) -> Extent:
        return Extent(simplify(("add", self.expression, expression_of(other))))

    __rmul__ = __mul__
    __radd__ = __add__


Count: TypeAlias = int | Extent

Shapes: TypeAlias = Callable[[Any], Sequence[Any]]
"""Gives the shape of a value of an op: numbers, and an :class:`Extent` or the marker of dynamic dims for each other."""


def static_shape(value: Any) -> Sequence[int]:
    """Returns the shape that the type of a value states."""
    return ir.RankedTensorType(value.type).shape


def expression_of(count: Count) -> Expr:
    """Returns a count as an expression."""
    return count.expression if isinstance(count, Extent) else count
