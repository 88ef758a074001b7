"""Upsample and Resize of opsets up to 10, which ONNX's version converter makes a Resize with another default.

They divide the place by the scale, and the nearest is the one at or below; since opset 11 places are those of centres,
and the nearest is rounded, unless attributes say so. The converter writes none.
"""

from __future__ import annotations

from onnx import AttributeProto, GraphProto, helper

RESIZE_OPSET = 11
"""The first in which Resize says how it finds places."""


def keep_old_coordinates(graph: GraphProto) -> None:
    """Says of each Resize, in bodies of control flow too, what an older one meant; in place, after the conversion."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                keep_old_coordinates(attribute.g)
        if node.op_type == "Resize" and node.domain in ("", "ai.onnx"):
            node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(helper.make_attribute("nearest_mode", "floor"))
