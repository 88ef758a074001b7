"""States that ``torch.export`` took for constants: tensors that are reached past the module and changed in place.

A cache that hangs on a plain object (the StaticCache of transformers) is no buffer to the non-strict exporter. It lifts
the cache's tensors as constants, and then cannot make a graph functional that writes to them. Here

    a constant that is a buffer of the module by another path   becomes that buffer,
    any other constant that an op changes in place              becomes a buffer of its own name.
"""

# torch tells ops and their schemas apart by private names only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec


def with_lifted_states(exported: ExportedProgram) -> ExportedProgram:
    """Returns a program whose changed constants are buffers: ``exported`` itself, unchanged, where there are none."""
    specs = exported.graph_signature.input_specs
    constants = [spec for spec in specs if spec.kind == InputKind.CONSTANT_TENSOR]
    if not constants or not any(_writes(node) for node in exported.graph.nodes):
        return exported
    buffers = {
        identity: spec
        for spec in specs
        if spec.kind == InputKind.BUFFER and (identity := _identity(exported, spec)) is not None
    }
    same = {spec.arg.name: buffers[key] for spec in constants if (key := _identity(exported, spec)) in buffers}
    changed = _changed_placeholders(exported.graph)
    promoted = {spec.arg.name for spec in constants} & changed - same.keys()
    if not same and not promoted:
        return exported
    graph = _copied(exported.graph)
    placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
    for name, buffer in same.items():
        placeholders[name].replace_all_uses_with(placeholders[buffer.arg.name])
        graph.erase_node(placeholders[name])
    signature = copy.deepcopy(exported.graph_signature)
    signature.input_specs = [
        InputSpec(InputKind.BUFFER, spec.arg, spec.target, persistent=False) if spec.arg.name in promoted else spec
        for spec in signature.input_specs
        if spec.arg.name not in same
    ]
    return with_graph(exported, exported.graph_module, graph, signature)


def with_graph(
    exported: ExportedProgram, root: torch.nn.Module, graph: fx.Graph, signature: ExportGraphSignature
) -> ExportedProgram:
    """Returns a program of another graph, whose attributes ``root`` holds; all else is that of ``exported``."""
    return ExportedProgram(
        root=root,
        graph=graph,
        graph_signature=signature,
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=copy.deepcopy(exported.module_call_graph),
        example_inputs=exported.example_inputs,
        constants=exported.constants,
        verifiers=exported.verifiers,
    )


def _copied(graph: fx.Graph) -> fx.Graph:
    """A copy whose nodes keep their names; a buffer's placeholder stands before all that reads it."""
    copied = fx.Graph(owning_module=graph.owning_module)
    copied.output(copied.graph_copy(graph, {}))
    first = next(iter(copied.nodes))
    for node in copied.find_nodes(op="placeholder"):
        if node is not first:
            first.append(node)
            first = node
    return copied


def _identity(exported: ExportedProgram, spec: InputSpec) -> tuple[Any, ...] | None:
    """What two tensors have in common that are the same memory seen the same way."""
    name = spec.target or ""
    tensor = exported.constants.get(name, exported.state_dict.get(name))
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.numel() == 0 or tensor.is_meta:
        return None
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _changed_placeholders(graph: fx.Graph) -> set[str]:
    """Names of the placeholders that an op writes to, directly or through a view."""
    origin: dict[fx.Node, str] = {node: node.name for node in graph.find_nodes(op="placeholder")}
    changed: set[str] = set()
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        schema = node.target._schema
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is None or not isinstance(value, fx.Node) or value not in origin:
                continue
            if argument.alias_info.is_write:
                changed.add(origin[value])
            if any(result.alias_info is not None for result in schema.returns):
                origin[node] = origin[value]
    return changed
