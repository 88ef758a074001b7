"""What users call the arguments of a graph: ``encoder.0.weight``, ``x``."""

from __future__ import annotations

import re
from typing import Any

from torch import fx

_CONTAINERS = frozenset({"_modules", "_parameters", "_buffers"})


def argument_names(captured: fx.GraphModule, traced: fx.GraphModule) -> dict[str, str]:
    """Returns names of the placeholders of a graph of AOTAutograd, where it says which argument each one is.

    Args:
        captured: the graph of TorchDynamo, whose placeholders know where their values came from.
        traced: the graph that AOTAutograd made of it.
    """
    sources = [_name(node) for node in captured.graph.find_nodes(op="placeholder")]
    names: dict[str, str] = {}
    for node in traced.graph.find_nodes(op="placeholder"):
        index = getattr(node.meta.get("desc"), "idx", None)
        if isinstance(index, int) and index < len(sources) and sources[index]:
            names[node.name] = sources[index]
    return names


def _name(node: Any) -> str:
    """``L['self']._modules['c']._parameters['weight']`` as ``c.weight``."""
    name: Any = getattr(getattr(node, "_dynamo_source", None), "name", "")
    text = str(name() if callable(name) else name)
    parts = [a or b for a, b in re.findall(r"\[['\"]?([^\]'\"]+)['\"]?\]|\.([A-Za-z_]\w*)", text)]
    inside = parts[1:] if len(parts) > 1 and parts[1] in _CONTAINERS else parts
    return ".".join(part for part in inside if part not in _CONTAINERS)
