"""Ops that the ONNX standard defines by other ops, replaced by these.

The standard gives such an op a function body: for some one body, for others one that depends on the node's attributes
and the types of its operands. A body is written for an opset; ops of it that changed up to the model's opset are
adapted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto

from lowerkit.capture.onnx.inline import inline_nodes, unique_prefix

_AXES_BECAME_INPUT = frozenset(
    f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
)
_CHANGED = 18


@cache
def defined_by_others(but: frozenset[str]) -> frozenset[tuple[str, str]]:
    """Returns (domain, op) of every operator that the standard gives a body, ``but`` those of these names."""
    schemas: Any = onnx.defs.get_all_schemas()
    return frozenset(
        (schema.domain, schema.name)
        for schema in schemas
        if schema.name not in but and (schema.has_function or schema.has_context_dependent_function)
    )


def opset_versions(model: ModelProto) -> dict[str, int]:
    """Returns domain -> version, the default domain under its short name."""
    return {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in model.opset_import}


def expand_functions(model: ModelProto, wanted: frozenset[tuple[str, str]] | set[tuple[str, str]]) -> bool:
    """Replaces the nodes of the wanted (domain, op) by their function bodies; returns whether there was one."""
    graph = model.graph
    types = {value.name: value.type for value in [*graph.input, *graph.value_info, *graph.output]}
    types.update(
        (tensor.name, onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)) for tensor in graph.initializer
    )
    versions = opset_versions(model)
    nodes: list[NodeProto] = []
    changed = False
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        body = None
        if (domain, node.op_type) in wanted:
            body = _body(node, domain, versions, types)
        if body is None:
            nodes.append(node)
            continue
        changed = True
        nodes.extend(_expanded(node, body, versions))
        for entry in body.opset_import:
            if entry.domain not in versions and entry.domain != "ai.onnx":
                versions[entry.domain] = entry.version
                model.opset_import.append(entry)
    if changed:
        del graph.node[:]
        graph.node.extend(nodes)
    return changed


def _body(
    node: NodeProto, domain: str, versions: Mapping[str, int], types: Mapping[str, TypeProto]
) -> FunctionProto | None:
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, versions.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None
    wanted = versions.get("", 1) if domain == "" else versions.get(domain, 1)
    body = FunctionProto()
    try:
        if schema.has_function:
            body.ParseFromString(
                schema.get_function_with_opset_version(_newest(schema.function_opset_versions, wanted))
            )
        elif schema.has_context_dependent_function:
            complete = _with_defaults(node, schema)
            operands = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
            version = _newest(schema.context_dependent_function_opset_versions, wanted)
            body.ParseFromString(
                schema.get_context_dependent_function_with_opset_version(
                    version, complete.SerializeToString(), operands
                )
            )
    except (RuntimeError, ValueError, TypeError, DecodeError):  # what the bodies' builders raise for missing types
        return None
    return body if body.node else None


def _newest(versions: Sequence[int], limit: int) -> int:
    return max((version for version in versions if version <= limit), default=min(versions))


def _with_defaults(node: NodeProto, schema: Any) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    present = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in present and attribute.default_value.type != AttributeProto.UNDEFINED:
            copy.attribute.append(attribute.default_value)
    return copy


def _expanded(node: NodeProto, body: FunctionProto, versions: Mapping[str, int]) -> list[NodeProto]:
    """Returns the nodes of the body under the names of the call; the call's location is theirs."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema: Any = onnx.defs.get_schema(node.op_type, versions.get(domain, 1), domain)
    complete = _with_defaults(node, schema)
    attributes = {attribute.name: attribute for attribute in [*body.attribute_proto, *complete.attribute]}
    names = {name: node.input[index] if index < len(node.input) else "" for index, name in enumerate(body.input)}
    names.update({name: actual for name, actual in zip(body.output, node.output, strict=False) if actual})
    nodes = inline_nodes(body.node, names, f"{unique_prefix(node)}/", attributes)
    written_for = next((entry.version for entry in body.opset_import if entry.domain in ("", "ai.onnx")), 0)
    adapted: list[NodeProto] = []
    for inner in nodes:
        if written_for < _CHANGED <= versions.get("", 1):
            adapted.extend(_adapted(inner))
        else:
            adapted.append(inner)
    for inner in adapted:
        inner.name = node.name or node.output[0]
        inner.metadata_props.extend(node.metadata_props)
    return adapted


def _adapted(node: NodeProto) -> list[NodeProto]:
    """Brings a node written for an opset before 18 to what 18 made of it: axes are an operand, splits are counted."""
    axes = next((attribute for attribute in node.attribute if attribute.name == "axes"), None)
    if node.op_type in _AXES_BECAME_INPUT and axes is not None:
        name = f"{node.output[0]}.axes"
        constant = onnx.helper.make_node("Constant", [], [name], value_ints=list(axes.ints))
        node.attribute.remove(axes)
        node.input.append(name)
        return [constant, node]
    if node.op_type == "Split" and len([name for name in node.input if name]) == 1:
        node.attribute.append(onnx.helper.make_attribute("num_outputs", len(node.output)))
    return [node]
