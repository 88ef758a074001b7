"""PRelu of opsets up to 6, whose slopes are one for each channel, axis 1.

ONNX's version converter leaves it as it is, and a newer one takes slopes along the last axis.
"""

from __future__ import annotations

from onnx import AttributeProto, GraphProto, helper

PRELU_OPSET = 7
"""The first in which slopes broadcast from the last axis on."""


def keep_slopes_of_channels(graph: GraphProto) -> None:
    """Says of each PRelu, in bodies of control flow too, that its slopes are along axis 1; in place, behind the
    conversion."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                keep_slopes_of_channels(attribute.g)
        if node.op_type == "PRelu" and node.domain in ("", "ai.onnx"):
            node.attribute.append(helper.make_attribute("axis", 1))
