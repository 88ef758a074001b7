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
from lowerkit.capture.torch_export.graph.decomposing import run_decompositions
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
        exported = run_decompositions(exported, {})
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
    return bool(contract_of(operator_name(node)).places)


def _check_node(node: fx.Node) -> None:
    for places in contract_of(operator_name(node)).places:
        for check in places.lookups(call_of(node)):
            value = check.index.meta.get("val") if isinstance(check.index, fx.Node) else None
            if isinstance(value, torch.Tensor) and value.dtype in _INTEGERS:
                _replace(node, check.index, _Checks(node, check).insert())


def _replace(node: fx.Node, index: fx.Node, checked: fx.Node) -> None:
    node.args = fx_node.map_arg(node.args, lambda item: checked if item is index else item)
    node.kwargs = fx_node.map_arg(node.kwargs, lambda item: checked if item is index else item)


class NodesBefore:
    """Makes nodes before another one, at its line, each with the value that it has for those of its arguments."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        self._place = {k: node.meta[k] for k in ("stack_trace", "nn_module_stack", "from_node") if k in node.meta}

    def call(self, target: Any, *arguments: Any, name: str | None = None, **named: Any) -> fx.Node:
        """Makes a call of an op."""
        with self.node.graph.inserting_before(self.node):
            made = self.node.graph.create_node("call_function", target, arguments, named, name=name)
        values = fx_node.map_arg(arguments, lambda item: item.meta["val"])
        tensor = next((value for value in values if isinstance(value, FakeTensor)), None)
        with contextlib.nullcontext() if tensor is None else tensor.fake_mode:
            made.meta = {**self._place, "val": target(*values, **named)}
        return made

    def extent(self, tensor: fx.Node, dim: int) -> Extent:
        """Reads an extent; a number where it is known."""
        extent = tensor.meta["val"].shape[dim]
        return int(extent) if is_concrete_int(extent) else self.call(aten.sym_size.int, tensor, dim)


class _Checks(NodesBefore):
    """The checks of one look-up."""

    def __init__(self, node: fx.Node, lookup: Lookup) -> None:
        super().__init__(node)
        self.lookup = lookup

    def insert(self) -> fx.Node:
        """Makes them; returns the index that is checked."""
        lookup, first = self.lookup, self.lookup.places.first
        size: Extent = 1
        for extent in [*(self.extent(lookup.data, dim) for dim in lookup.dims), *lookup.factors]:
            known = isinstance(size, int) and isinstance(extent, int)
            size = size * extent if known else extent if size == 1 else self.call(operator.mul, size, extent)
        if lookup.places.ends:
            return self._ends(size)
        if first == 0:
            return self._checked(lookup.index, size)
        shifted = self._checked(self.call(aten.sub.Tensor, lookup.index, first), size)
        return self.call(aten.add.Tensor, shifted, first)

    def _ends(self, size: Extent) -> fx.Node:
        """Places that begin with 0, do not go back and reach ``size`` at most: each step between them is checked."""
        call, index = self.call, self.lookup.index
        size = call(operator.add, size, 1) if isinstance(size, fx.Node) else size + 1
        first = self._checked(call(aten.slice.Tensor, index, 0, 0, 1), 1, "_first")
        rest = self._checked(call(aten.slice.Tensor, index, 0, 1, _END), size)
        places = call(aten.cat.default, [first, rest], 0)
        steps = call(aten.sub.Tensor, rest, call(aten.slice.Tensor, places, 0, 0, -1))
        steps = self._checked(steps, size, "_steps")
        return call(aten.cumsum.default, call(aten.cat.default, [first, steps], 0), 0, dtype=index.meta["val"].dtype)

    def _checked(self, index: fx.Node, size: Extent, stem: str = "") -> fx.Node:
        asked = (index, [size], self.lookup.places.wraps, self.lookup.exempt)
        name = operator_name(self.node).removeprefix("_")
        return self.call(CHECKED_INDICES, *asked, name, name=f"{self.node.name}{stem}_check")
