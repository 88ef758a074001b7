"""What an operator needs of symbolic extents where torch notes no condition: eager refuses other sizes.

Vocabulary
    a position         ``select`` of one that the dim has
    the largest        ``topk`` and ``kthvalue`` of no more elements than there are
    an extreme         of no elements is none: maxima and their places, medians, modes, quantiles, norms of infinite or
                       negative order
    resizing           reads at least one element along each dim but the batch; adaptive pools and padding by the
                       border along each spatial one
    a diagonal         of nothing: how long it is was computed as if no extent were 0
    any                result has no negative extent: ``x[1:]`` of no elements has none, not ``n - 1``

A requirement is an extent and the least that it must be, as sympy's relations will not do: torch declares its symbols
positive, so that ``n >= 1`` is true to sympy, and sizes of 0 are not thought of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
from torch import fx

from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.node_schemas import named_arguments, operator_name

_Given = dict[str, Any]
_Requirements = Iterator[tuple[Any, int]]
_Rule = Callable[[_Given, list[Any]], _Requirements]

_POOL = re.compile(r"adaptive_(?:avg|max)_pool(?P<spatial>\d)d|replication_pad(?P<padded>\d)d")


def needed_extents(graph: fx.Graph) -> Iterator[tuple[fx.Node, Any, int]]:
    """Yields nodes with an extent, as sympy's expression of symbols, and the least that it must be.

    Bodies of control flow are looked through as well.
    """
    for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
        for extent in extents_of(node) or []:
            if not extent.is_Integer and not extent.is_Symbol:
                yield node, extent, 0
        name = operator_name(node)
        rule = _RULES.get(name) or (_resized if name.lstrip("_").startswith("upsample_") else None)
        given = named_arguments(node) if rule is not None or _POOL.fullmatch(name) else {}
        extents = extents_of(given.get("self", given.get("input")))
        if extents is not None:
            for extent, least in rule(given, extents) if rule is not None else _last(name, extents):
                yield node, extent, least


def extents_of(item: Any) -> list[Any] | None:
    """A tensor's extents as sympy's, numbers as sympy's numbers; None for what is no tensor."""
    value = item.meta.get("val") if isinstance(item, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    extents: list[Any] = list(value.shape)
    return [sympy.Integer(n) if isinstance(n, int) else n.node.expr for n in extents]


def _at_least(extents: list[Any], count: int = 1) -> _Requirements:
    """Where an extent is known, torch has looked."""
    return ((extent, count) for extent in extents if not extent.is_Integer)


def _select(given: _Given, extents: list[Any]) -> _Requirements:
    index = given["index"]
    if isinstance(index, int):
        yield from _at_least([extents[given["dim"]]], index + 1 if index >= 0 else -index)


def _largest(given: _Given, extents: list[Any]) -> _Requirements:
    if extents and isinstance(given["k"], int):
        yield from _at_least([extents[given["dim"]]], given["k"])


def _reduced(given: _Given, extents: list[Any]) -> _Requirements:
    """Along ``dim``: an int, a list, or nothing for all."""
    dims = given.get("dim")
    if dims is None or dims == [] or not extents:
        return _at_least(extents)
    return _at_least([extents[dim] for dim in ([dims] if isinstance(dims, int) else dims)])


def _of_order(given: _Given, extents: list[Any]) -> _Requirements:
    order = given.get("ord", given.get("p"))
    if isinstance(order, (int, float)) and (order < 0 or order == math.inf):
        yield from _reduced(given, extents)


def _diagonal(given: _Given, extents: list[Any]) -> _Requirements:
    """``diag`` and ``trace`` of a matrix; ``diagonal`` says which dims."""
    if len(extents) > 1:
        yield from _at_least([extents[given.get("dim1", 0)], extents[given.get("dim2", 1)]])


def _all(given: _Given, extents: list[Any]) -> _Requirements:
    return _at_least(extents)


def _resized(given: _Given, extents: list[Any]) -> _Requirements:
    """All but the batch."""
    return _at_least(extents[1:])


def _last(name: str, extents: list[Any]) -> _Requirements:
    """The spatial dims that the name counts; a batch is not needed."""
    found = _POOL.fullmatch(name)
    assert found is not None, "an adaptive pool, or a padding"
    return _at_least(extents[-int(found["spatial"] or found["padded"]) :])


def _pad(given: _Given, extents: list[Any]) -> _Requirements:
    if given["mode"] == "replicate":
        yield from _at_least(extents[-(len(given["pad"]) // 2) :])
    elif given["mode"] == "reflect":
        yield from _beyond(given["pad"], extents)


def _reflected(given: _Given, extents: list[Any]) -> _Requirements:
    return _beyond(given["padding"], extents)


def _beyond(padding: list[Any], extents: list[Any]) -> _Requirements:
    """More elements than are reflected; the last dim's padding comes first."""
    for place in range(0, len(padding), 2):
        numbers = [number for number in padding[place : place + 2] if isinstance(number, int)]
        yield extents[-1 - place // 2], max(numbers, default=0) + 1


_RULES: dict[str, _Rule] = {
    "select": _select,
    **dict.fromkeys(("topk", "kthvalue"), _largest),
    **dict.fromkeys(
        ("amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "mode", "median", "nanmedian"), _reduced
    ),
    **dict.fromkeys(("quantile", "nanquantile"), _all),
    "_native_batch_norm_legit": _all,
    **dict.fromkeys(("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"), _all),
    **dict.fromkeys(("linalg_vector_norm", "norm"), _of_order),
    **dict.fromkeys(("diagonal", "diagonal_copy", "diag", "trace"), _diagonal),
    "pad": _pad,
    **dict.fromkeys(("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"), _reflected),
}
