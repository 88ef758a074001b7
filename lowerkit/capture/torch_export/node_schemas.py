"""What PyTorch's schema says of a node of an exported graph: the op's name, and its arguments by name."""

# torch tells ops and their schemas apart by private names only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import torch
from torch import fx


def operator_name(node: fx.Node) -> str:
    """``index_put`` of ``aten.index_put_.default``, without the underscore of one that writes; empty for no such op."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return ""
    space, _, name = node.target._schema.name.partition("::")
    return name.rstrip("_") if space == "aten" else ""


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a node whose target is an overload, defaults included, by the names in its schema."""
    assert isinstance(node.target, torch._ops.OpOverload), "it has a schema"
    given = {argument.name: argument.default_value for argument in node.target._schema.arguments}
    return given | dict(zip(given, node.args, strict=False)) | node.kwargs
