"""Extents that a write by index lists needs to agree, of which torch notes nothing: eager refuses others.

What is written, ``values``, is broadcast to the places that the lists name. Torch's own account of ``index_put`` does
not compare the two, so that a program exported with open sizes would read beyond the values.

Vocabulary
    place shape        the lists' broadcast extents, where the first list stands if they follow one another and in front
                       otherwise, among the extents of the dims that no list names
    unknown            how many places a mask names
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx

from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.node_schemas import named_arguments, operator_name
from lowerkit.capture.torch_export.symbolic.required_extents import extents_of

_WRITES = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")


def needed_equalities(graph: fx.Graph) -> Iterator[tuple[fx.Node, Any]]:
    """Yields nodes with an equality of extents, sympy's, that must hold; bodies of control flow are looked through."""
    for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
        if operator_name(node) not in _WRITES:
            continue
        given = named_arguments(node)
        places = place_shape(extents_of(given["self"]) or [], list(given["indices"]))
        values = extents_of(given["values"]) or []
        for value, place in zip(reversed(values), reversed(places), strict=False):
            if place is not None and value not in (1, place):
                yield node, sympy.Eq(value, place)


def place_shape(extents: list[Any], indices: list[Any]) -> list[Any]:
    """The extents of what index lists name in a tensor of ``extents``; None stands for what a mask decides."""
    named: list[int] = []
    kept: list[tuple[int, Any]] = []
    lists: list[list[Any]] = []
    axis = 0
    for index in [*indices, *[None] * len(extents)]:
        if axis >= len(extents):
            break
        if index is None:
            kept.append((axis, extents[axis]))
            axis += 1
            continue
        shape = extents_of(index) or []
        is_mask = index.meta["val"].dtype in (torch.bool, torch.uint8)
        lists.append([None] if is_mask else shape)
        width = len(shape) if is_mask else 1
        named += range(axis, axis + width)
        axis += width
    together = _broadcast(lists)
    if not named or named != list(range(named[0], named[-1] + 1)):
        return [*together, *(extent for _, extent in kept)]
    before = [extent for axis, extent in kept if axis < named[0]]
    after = [extent for axis, extent in kept if axis > named[0]]
    return [*before, *together, *after]


def _broadcast(shapes: list[list[Any]]) -> list[Any]:
    """An extent that is not 1 wins; one that a mask decides is not known."""
    rank = max(map(len, shapes), default=0)
    result: list[Any] = []
    for place in range(-rank, 0):
        met = [shape[place] for shape in shapes if len(shape) >= -place]
        others = [extent for extent in met if extent is not None and extent != 1]
        result.append(others[0] if others else None if None in met else sympy.Integer(1))
    return result
