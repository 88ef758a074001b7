"""Where an ONNX node comes from: its name, the module that it belongs to, the Python stack of what was exported."""

from __future__ import annotations

import re

from onnx import NodeProto

from lowerkit.mlir import ir
from lowerkit.program.locations import frames_of_trace, make_location

_STACK = "pkg.torch.onnx.stack_trace"
_SCOPES = "pkg.torch.onnx.name_scopes"
_QUOTED = re.compile(r"'([^'\\]*)'")
_LONGEST = 1 << 16


def node_location(node: NodeProto, context: ir.Context) -> ir.Location:
    """Returns the location of a node.

    torch's exporter states the scopes of a node, outermost first and the node itself last, and the Python stack. Else
    a name as ``/encoder/layer.0/MatMul`` carries the module path.
    """
    name = node.name or (node.output[0] if node.output else node.op_type)
    facts = {entry.key: entry.value for entry in node.metadata_props if entry.key in (_STACK, _SCOPES)}
    scopes = _QUOTED.findall(facts.get(_SCOPES, "")[:_LONGEST])
    module = scopes[-2] if len(scopes) > 1 else name.strip("/").rpartition("/")[0].replace("/", ".")
    return make_location(name, module if module.isprintable() else "", frames_of_trace(facts.get(_STACK)), context)
