"""``select_scatter`` at a position of a dim whose extent is not known: torch notes no condition for it.

At an extent that does not have the position eager refuses, so that the extent has it is a condition of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from lowerkit.capture.fx_control_flow import body_graphs
from lowerkit.capture.operators import aten
from lowerkit.capture.symbolic import is_static


def symbolic_positions(graph: fx.Graph) -> Iterator[tuple[fx.Node, Any, int]]:
    """Yields each such node with the extent and the least that it may be, also in bodies of control flow."""
    for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
        if node.op != "call_function" or node.target is not aten.select_scatter.default:
            continue
        given = dict(zip(("self", "src", "dim", "index"), node.args, strict=False)) | node.kwargs
        source, index = given["self"], given["index"]
        value: Any = source.meta.get("val") if isinstance(source, fx.Node) else None
        if isinstance(value, torch.Tensor) and isinstance(index, int):
            extent = value.shape[int(given["dim"])]  # pyright: ignore[reportArgumentType] -- an int by its schema
            if not is_static(extent):
                yield node, extent, index + 1 if index >= 0 else -index
