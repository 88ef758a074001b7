"""What the operators of an exported graph need of extents, where torch notes no condition: eager refuses other sizes.

What they need is said in :mod:`lowerkit.capture.contracts.table`; beside that no result has a negative extent:
``x[1:]`` of no elements has none, not ``n - 1``. A need is kept as an extent and the least that it must be, as sympy's
relations will not do: torch declares its symbols positive, so that ``n >= 1`` is true to sympy, and sizes of 0 are not
thought of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx

from lowerkit.capture.contracts.table import contract_of
from lowerkit.capture.contracts.vocabulary import Call, Need, along
from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.node_schemas import named_arguments, operator_name
from lowerkit.capture.torch_export.operators import aten


def needs_of(graph: fx.Graph) -> Iterator[tuple[fx.Node, Need]]:
    """Yields nodes with what they need of extents, sympy's; bodies of control flow are looked through as well."""
    for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
        for extent in extents_of(node) or []:
            if not extent.is_Integer and not extent.is_Symbol:
                yield node, Need("at least", extent, 0)
        for rule in contract_of(operator_name(node)).needs:
            for need in rule(call_of(node)):
                if not (need.of_tracing and need.extent.is_Integer):
                    yield node, need


def keep_open_dims(graph: fx.Graph) -> None:
    """Lets each ``squeeze`` name the dims of extent 1 alone, in place: traced as if it were not 1, an open one stays.

    At an extent of 1 the result would have one dim less, which no program of one signature can give: that it is not 1
    is a need of the ``squeeze``.
    """
    for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
        if operator_name(node) == "squeeze":
            call = call_of(node)
            extents = extents_of(call.data()) or []
            dims = list(along("dim")(call, len(extents)))
            if not all(extents[dim].is_Integer for dim in dims):
                dropped = [dim for dim in dims if extents[dim] == 1]
                node.target, node.args, node.kwargs = aten.squeeze.dims, (call.data(), dropped), {}


def call_of(node: fx.Node) -> Call:
    """A node as contracts see it; its extents are sympy's."""
    return Call(named_arguments(node), extents_of, _is_mask)


def extents_of(item: Any) -> list[Any] | None:
    """A tensor's extents as sympy's, numbers as sympy's numbers; None for what is no tensor."""
    value = item.meta.get("val") if isinstance(item, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    extents: list[Any] = list(value.shape)
    return [sympy.Integer(n) if isinstance(n, int) else n.node.expr for n in extents]


def _is_mask(item: Any) -> bool:
    return item.meta["val"].dtype in (torch.bool, torch.uint8)
