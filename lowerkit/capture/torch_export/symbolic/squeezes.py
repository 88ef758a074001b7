"""``squeeze`` of dims whose extent is not known: traced as if it were not 1, so they stay.

At an extent of 1 the result would have one dim less, which no program of one signature can give: that such an extent is
not 1 is a condition of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.dims import is_static

_SQUEEZES = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)


def symbolic_squeezes(graph: fx.Graph) -> Iterator[tuple[fx.Node, list[Any]]]:
    """Yields each ``squeeze`` over dims of unknown extent, with those extents, also in bodies of control flow."""
    for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
        if node.op == "call_function" and node.target in _SQUEEZES:
            unknown = [extent for _, extent in _squeezed(node) if not is_static(extent)]
            if unknown:
                yield node, unknown


def keep_symbolic_dims(graph: fx.Graph) -> None:
    """Lets each ``squeeze`` name the dims of extent 1 alone; in place."""
    for node, _ in symbolic_squeezes(graph):
        dropped = [axis for axis, extent in _squeezed(node) if is_static(extent) and extent == 1]
        node.target, node.args, node.kwargs = aten.squeeze.dims, (node.args[0], dropped), {}


def _squeezed(node: fx.Node) -> list[tuple[int, Any]]:
    """The dims that a ``squeeze`` looks at, with their extents."""
    source = node.args[0]
    value: Any = source.meta.get("val") if isinstance(source, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return []
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", range(value.dim()))
    axes: Sequence[int] = [given] if isinstance(given, int) else given
    rank = value.dim()
    return [(axis % rank, value.shape[axis]) for axis in axes] if rank else []
