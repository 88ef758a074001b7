"""Writes into a part of a tensor whose extents are not known: torch notes no condition for some of them.

Eager refuses a position that a dim does not have, and a value of another shape than the part that it is written to.
That neither comes is a condition of the program.

    select_scatter      the dim has the position; the value has the other dims
    slice_scatter       the value has the other dims, and as many positions as the slice
    diagonal_scatter    the value has the other dims, and the diagonal's length
    index_add           the value has the other dims
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sympy
from torch import fx
from torch.utils._sympy.functions import FloorDiv

from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.node_schemas import named_arguments, operator_name
from lowerkit.capture.torch_export.symbolic.required_extents import extents_of

_Given = dict[str, Any]
_Rule = Callable[[_Given, list[Any], list[Any]], Iterator[Any]]


def conditions_on_slots(graph: fx.Graph) -> Iterator[tuple[fx.Node, Any]]:
    """Yields sympy's conditions on symbolic extents, each with its node, also in bodies of control flow."""
    for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
        rule = _RULES.get(operator_name(node))
        if rule is None:
            continue
        given = named_arguments(node)
        into, value = extents_of(given["self"]), extents_of(given.get("src", given.get("source")))
        if into is not None and value is not None:
            for condition in rule(given, into, value):
                if condition not in (True, sympy.true):
                    yield node, condition


def _equal(left: list[Any], right: list[Any]) -> Iterator[Any]:
    """Where both are known, torch has looked."""
    return (sympy.Eq(a, b) for a, b in zip(left, right, strict=False) if not (a.is_Integer and b.is_Integer))


def _select_scatter(given: _Given, into: list[Any], value: list[Any]) -> Iterator[Any]:
    dim, index = int(given["dim"]) % len(into), given["index"]
    yield from _equal(into[:dim] + into[dim + 1 :], value)
    if isinstance(index, int) and not into[dim].is_Integer:
        yield sympy.Ge(into[dim], index + 1 if index >= 0 else -index)


def _slice_scatter(given: _Given, into: list[Any], value: list[Any]) -> Iterator[Any]:
    dim, step = int(given["dim"]) % len(into), given["step"]
    bounds = [given["start"], given["end"]]
    if isinstance(step, int) and all(bound is None or isinstance(bound, int) for bound in bounds):
        start = _within(bounds[0] or 0, into[dim])
        end = into[dim] if bounds[1] is None else _within(bounds[1], into[dim])
        count = sympy.Max(0, end - start)
        into = [*into[:dim], count if step == 1 else FloorDiv(count + step - 1, step), *into[dim + 1 :]]
        yield from _equal(into, value)


def _within(position: int, extent: Any) -> Any:
    """A bound of a slice as Python takes it: from the end where it is negative, and no further than the ends."""
    return sympy.Max(0, extent + position) if position < 0 else sympy.Min(extent, position)


def _diagonal_scatter(given: _Given, into: list[Any], value: list[Any]) -> Iterator[Any]:
    first, second = (int(given[name]) % len(into) for name in ("dim1", "dim2"))
    offset = int(given["offset"])
    rest = [extent for axis, extent in enumerate(into) if axis not in (first, second)]
    length = sympy.Max(0, sympy.Min(into[first] + min(offset, 0), into[second] - max(offset, 0)))
    return _equal([*rest, length], value)


def _index_add(given: _Given, into: list[Any], value: list[Any]) -> Iterator[Any]:
    if into:
        dim = int(given["dim"]) % len(into)
        yield from _equal(into[:dim] + into[dim + 1 :], value[:dim] + value[dim + 1 :])


_RULES: dict[str, _Rule] = {
    "select_scatter": _select_scatter,
    "slice_scatter": _slice_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "index_add": _index_add,
}
