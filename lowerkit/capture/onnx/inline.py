"""Copies the nodes of a body (a function's, a branch's, a loop step's) into a graph, under names of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import AttributeProto, GraphProto, NodeProto


def inline_nodes(
    nodes: Iterable[NodeProto],
    names: Mapping[str, str],
    prefix: str,
    attributes: Mapping[str, AttributeProto] | None = None,
) -> list[NodeProto]:
    """Returns renamed copies of ``nodes``.

    Args:
        nodes: the body, in order.
        names: what values of the body are called outside; the other values that the body defines get the prefix, and
            values that it merely reads keep their names.
        prefix: makes names unique.
        attributes: the values of attributes that a function's nodes refer to; references to others are dropped.
    """
    body = list(nodes)
    defined = {name for node in body for name in node.output if name}
    known = {**{name: prefix + name for name in defined}, **names}
    return [_renamed(node, known, prefix, attributes) for node in body]


def unique_prefix(node: NodeProto) -> str:
    """Returns a prefix for the values that replace a node: no other node of the graph has its output and its type."""
    return f"{next((name for name in node.output if name), 'nothing')}.{node.op_type}"


def _renamed(
    node: NodeProto, names: Mapping[str, str], prefix: str, attributes: Mapping[str, AttributeProto] | None
) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    if node.name:
        copy.name = prefix + node.name
    for values in (copy.input, copy.output):
        for index, name in enumerate(values):
            values[index] = names.get(name, name)
    del copy.attribute[:]
    for attribute in node.attribute:
        found = attribute
        if attribute.ref_attr_name:
            referred = (attributes or {}).get(attribute.ref_attr_name)
            if referred is None:
                continue
            found = referred
        added = copy.attribute.add()
        added.CopyFrom(found)
        added.name = attribute.name
        if added.type == AttributeProto.GRAPH:
            _rename_graph(added.g, names, prefix, attributes)
    return copy


def _rename_graph(
    graph: GraphProto, names: Mapping[str, str], prefix: str, attributes: Mapping[str, AttributeProto] | None
) -> None:
    """Renames what a subgraph reads from outside; its own values keep their names."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    outer = {name: new for name, new in names.items() if name not in own}
    renamed = [_renamed(node, outer, prefix, attributes) for node in graph.node]
    del graph.node[:]
    graph.node.extend(renamed)


def names_read(graph: GraphProto) -> list[str]:
    """Returns the names that a subgraph reads from outside itself, each once, in order."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    read: dict[str, None] = {}
    for node in graph.node:
        read.update(dict.fromkeys(node_reads(node)))
    read.update(dict.fromkeys(value.name for value in graph.output))
    return [name for name in read if name and name not in own]


def node_reads(node: NodeProto) -> list[str]:
    """Returns the names that a node reads: its inputs, and what its subgraphs read from outside themselves."""
    inner = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    return [*node.input, *(name for graph in inner for name in names_read(graph))]
