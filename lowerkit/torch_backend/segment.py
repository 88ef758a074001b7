"""A segment: nodes of an ATen graph that lowerkit compiles as one program."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from lowerkit.torch_backend.nodes import is_body, is_number


@dataclass
class Segment:
    """Nodes that become one program.

    Attributes:
        nodes: in the order of the graph.
        inputs: tensors from outside that they read.
        outputs: tensors of theirs that are read outside.
    """

    nodes: list[fx.Node]
    inputs: list[fx.Node]
    outputs: list[fx.Node]

    @staticmethod
    def of(nodes: Sequence[fx.Node], eager: Container[fx.Node], last_views: Container[fx.Node]) -> Segment:
        """Finds what crosses the border of ``nodes``; PyTorch runs ``eager`` and, for outputs, ``last_views``."""
        inside = set(nodes)
        inputs: dict[fx.Node, None] = {}
        for node in nodes:
            for source in node.all_input_nodes:
                if source not in inside and not is_number(source) and not is_body(source):
                    inputs[source] = None

        def reads(user: fx.Node, node: fx.Node) -> bool:
            if user in eager:
                return True
            if user in last_views or user.op == "output":
                return node not in last_views
            return user not in inside and not is_number(user)

        outputs = [
            node
            for node in nodes
            if isinstance(node.meta["val"], torch.Tensor) and any(reads(user, node) for user in node.users)
        ]
        return Segment(list(nodes), list(inputs), outputs)
