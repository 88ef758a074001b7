"""Puts a check before each look-up and write by index of an exported graph, as the user wrote it.

Which values an index may have is a matter of the op: ``embedding``, ``gather``, ``scatter`` and their kin refuse those
below 0, indexing by brackets, ``index_fill``, ``take`` and ``put`` count them from the end, and a class of ``-100``
means that a sample has no loss (:mod:`lowerkit.capture.contracts.table`). What an op is written out of says other
things, so the graph gets its checks before anything is decomposed (:mod:`checked_indices`); internal look-ups of a
decomposition get none.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import node as fx_node
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from lowerkit.capture.contracts.table import contract_of
from lowerkit.capture.contracts.vocabulary import Lookup
from lowerkit.capture.torch_export.graph.checked_indices import CHECKED_INDICES
from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.lifted_states import with_graph
from lowerkit.capture.torch_export.node_schemas import operator_name
from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.needs import call_of

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)

_END = 2**63 - 1
Extent = Any
"""An int, or a node that gives one."""


def with_index_checks(exported: ExportedProgram) -> ExportedProgram:
    """Returns a program with a check before each look-up by data; ``exported`` itself, unchanged, without look-ups."""
    nodes = [node for graph in body_graphs(exported.graph) for node in graph.nodes]
    if not any(map(_looks_up, nodes)):
        return exported
    if any(map(_is_batched, nodes)):
        exported = exported.run_decompositions({})
    module = _copied(exported.graph_module)
    for node in [node for graph in body_graphs(module.graph) for node in graph.nodes]:
        _check_node(node)
    return with_graph(exported, module, module.graph, copy.deepcopy(exported.graph_signature))


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graphs, with the tensors and names of the original."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for old, new in zip(module.graph.nodes, graph.nodes, strict=True):
        new.name = old.name
        new.meta = dict(old.meta)
    copied = fx.GraphModule(module, graph)
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            setattr(copied, name, _copied(child))
    copied.meta = dict(module.meta)
    return copied


def _is_batched(node: fx.Node) -> bool:
    """Whether a node is inside of ``torch.vmap``, where tensors stand for one of a batch, until it is traced again."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


def _looks_up(node: fx.Node) -> bool:
    contract = contract_of(operator_name(node))
    return contract is not None and bool(contract.places)


def _check_node(node: fx.Node) -> None:
    contract = contract_of(operator_name(node))
    for check in contract.lookups_of(call_of(node)) if contract is not None else ():
        value = check.index.meta.get("val") if isinstance(check.index, fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.dtype not in _INTEGERS:
            continue
        with node.graph.inserting_before(node):
            checked = _insert(node, check)
        node.args = fx_node.map_arg(node.args, lambda item, c=check, new=checked: new if item is c.index else item)
        node.kwargs = fx_node.map_arg(node.kwargs, lambda item, c=check, new=checked: new if item is c.index else item)


def _insert(node: fx.Node, check: Lookup) -> fx.Node:
    graph = node.graph
    place = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack", "from_node") if key in node.meta}
    size: Extent = 1
    for dim in check.dims:
        extent: Extent = check.data.meta["val"].shape[dim]
        extent = int(extent) if is_concrete_int(extent) else _call(graph, place, aten.sym_size.int, check.data, dim)
        size = _product(graph, size, extent, place)
    for factor in check.factors:
        size = _product(graph, size, factor, place)
    if check.places.ends:
        return _checked_ends(node, check, size, place)
    first = check.places.first
    if first == 0:
        return _checked(node, check, check.index, size, node.name, place)
    shifted = _call(graph, place, aten.sub.Tensor, check.index, first)
    return _call(graph, place, aten.add.Tensor, _checked(node, check, shifted, size, node.name, place), first)


def _checked_ends(node: fx.Node, check: Lookup, size: Extent, place: dict[str, Any]) -> fx.Node:
    """Places that begin with 0, do not go back and reach ``size`` at most: each step between them is checked too."""
    graph = node.graph

    def call(target: Any, *arguments: Any, **named: Any) -> fx.Node:
        return _call(graph, place, target, *arguments, **named)

    size = call(operator.add, size, 1) if isinstance(size, fx.Node) else size + 1
    first = call(aten.slice.Tensor, check.index, 0, 0, 1)
    first = _checked(node, check, first, 1, f"{node.name}_first", place)
    rest = call(aten.slice.Tensor, check.index, 0, 1, _END)
    rest = _checked(node, check, rest, size, node.name, place)
    places = call(aten.cat.default, [first, rest], 0)
    steps = call(aten.sub.Tensor, rest, call(aten.slice.Tensor, places, 0, 0, -1))
    steps = _checked(node, check, steps, size, f"{node.name}_steps", place)
    dtype = check.index.meta["val"].dtype
    return call(aten.cumsum.default, call(aten.cat.default, [first, steps], 0), 0, dtype=dtype)


def _checked(node: fx.Node, check: Lookup, index: fx.Node, size: Extent, stem: str, place: dict[str, Any]) -> fx.Node:
    arguments = (index, [size], check.places.wraps, check.exempt, operator_name(node).removeprefix("_"))
    checked = node.graph.create_node("call_function", CHECKED_INDICES, arguments, name=f"{stem}_check")
    value = index.meta["val"]
    with value.fake_mode:
        checked.meta = {**place, "val": torch.empty_like(value, memory_format=torch.contiguous_format)}
    return checked


def _call(graph: fx.Graph, place: dict[str, Any], target: Any, *arguments: Any, **named: Any) -> fx.Node:
    """A call of an op, with the value that it has for the values of its arguments."""
    made = graph.call_function(target, arguments, named)
    values = fx_node.map_arg(arguments, lambda item: item.meta["val"])
    tensor = next((value for value in values if isinstance(value, FakeTensor)), None)
    mode = contextlib.nullcontext() if tensor is None else tensor.fake_mode
    with mode:
        made.meta = {**place, "val": target(*values, **named)}
    return made


def _product(graph: fx.Graph, one: Extent, other: Extent, place: dict[str, Any]) -> Extent:
    if isinstance(one, int) and (one == 1 or isinstance(other, int)):
        return one * other if isinstance(other, int) else other
    return _call(graph, place, operator.mul, one, other)
