"""Hardmax of opsets up to 12, which sees its operand as a matrix: one maximum of all that follows the axis.

ONNX's version converter leaves it as it is, and a newer one looks along the axis alone.
"""

from __future__ import annotations

from onnx import GraphProto, helper

HARDMAX_OPSET = 13
"""The first in which Hardmax looks along one axis."""


def flatten_before_hardmax(graph: GraphProto) -> None:
    """Writes each Hardmax of the graph as one of a matrix; in place, after the conversion."""
    nodes = list(graph.node)
    del graph.node[:]
    for number, node in enumerate(nodes):
        if node.op_type != "Hardmax" or node.domain not in ("", "ai.onnx"):
            graph.node.append(node)
            continue
        axis = next((entry.i for entry in node.attribute if entry.name == "axis"), 1)
        shape, matrix, chosen = (f"{node.output[0]}.{number}.{part}" for part in ("shape", "matrix", "chosen"))
        graph.node.extend(
            [
                helper.make_node("Shape", [node.input[0]], [shape]),
                helper.make_node("Flatten", [node.input[0]], [matrix], axis=axis),
                helper.make_node("Hardmax", [matrix], [chosen], name=node.name, axis=1),
                helper.make_node("Reshape", [chosen, shape], list(node.output)),
            ]
        )
