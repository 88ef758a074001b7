"""Keeps how a tensor lies in memory where ``as_strided`` reads it, though its operator is written out of others.

``as_strided`` reads by places in memory, which follow from the operator that made the tensor: ``cummin`` gives rows one
after the other, whatever lies transposed before it. What an operator is decomposed into may lie otherwise. The layout
that the export has noted is therefore written down, as a copy into that layout, before operators are decomposed.

``x[j]`` by a tensor ``j`` is a view in eager and a look-up here. A place in memory that is named is the same in ``x``;
one that follows from ``j`` is refused.

Vocabulary
    fresh     a tensor with memory of its own: no view, no result of a write in place
    dense     its elements fill its memory from the first place on, in the order of some permutation of its dims
"""

# torch keeps an exported program's module private; the version is pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
import math
import operator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from lowerkit.capture.torch_export.graph.functionalize import BY_STORAGE
from lowerkit.capture.torch_export.node_schemas import named_arguments
from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.dims import is_static
from lowerkit.errors import UnsupportedError
from lowerkit.program.locations import users_line


def with_known_layouts(exported: ExportedProgram) -> ExportedProgram:
    """The program with copies into the noted layout, itself if nothing reads by places in memory."""
    if not any(node.target in BY_STORAGE for node in exported.graph.nodes):
        return exported
    own = copy.copy(exported)
    own._graph_module = copy.deepcopy(exported.graph_module)
    nodes = [node for node in own.graph.nodes if node.target in BY_STORAGE]
    _read_behind_lookups(nodes)
    writes = any(_is_write(node) for node in own.graph.nodes)
    for source in dict.fromkeys(_made_by(node) for node in nodes):
        order = _order(source.meta.get("val")) if source is not None else None
        if source is not None and order is not None and not (writes and _must_stay(source, order, nodes)):
            _lay_out(source, order)
    own.graph_module.recompile()
    return own


def _read_behind_lookups(readers: list[fx.Node]) -> None:
    """Lets ``as_strided`` of ``x[j]`` at a named place read ``x``.

    Raises:
        UnsupportedError: LK4001, with all readers of a place that only the index tells.
    """
    found: list[str] = []
    for reader in readers:
        lookup = _lookup_behind(reader.args[0])
        while lookup is not None:
            if reader.target is not aten.as_strided.default or named_arguments(reader)["storage_offset"] is None:
                line = users_line(reader.meta.get("stack_trace"))
                found.append(f"{reader.name}: {reader.target}" + (f" at {line}" if line else ""))
                break
            reader.update_arg(0, lookup.args[0])
            lookup = _lookup_behind(reader.args[0])
    if found:
        raise UnsupportedError(
            "LK4001",
            "places in memory of x[j], which lie where the tensor j tells",
            details=found,
            hint="read a copy, x[j].clone(), or name the place: as_strided(x, size, stride, storage_offset)",
        )


def _lookup_behind(value: Any) -> fx.Node | None:
    """The first ``select`` by data among the views that ``value`` is made of."""
    while isinstance(value, fx.Node) and isinstance(value.target, torch._ops.OpOverload):
        if value.target is aten.select.int and isinstance(value.args[2], fx.Node):
            return value
        (result, *more) = value.target._schema.returns
        if more or result.alias_info is None or not value.args:
            return None
        value = value.args[0]
    return None


def _must_stay(source: fx.Node, order: list[int], readers: list[fx.Node]) -> bool:
    """Whether a copy would lose a write, or torch not take one.

    An output is known by the name of its node, so that it stays the tensor itself, which then has to be what is written
    to. A write through ``as_strided`` of a view is refused, and a copy into another order of dims is a view.
    """
    returned = any(user.op == "output" for user in source.users)
    return returned or (order != sorted(order) and any(_is_write(user) for node in readers for user in node.users))


def _is_write(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _made_by(reader: fx.Node) -> fx.Node | None:
    """The fresh tensor that ``reader`` sees, through views and writes; None for an input or a constant."""
    node = reader.args[0]
    while isinstance(node, fx.Node) and node.op == "call_function":
        maker = node.args[0] if node.target is operator.getitem else node
        target = maker.target if isinstance(maker, fx.Node) else None
        if not isinstance(target, torch._ops.OpOverload):
            return None
        shares = any(result.alias_info is not None for result in target._schema.returns)
        if not shares and not target._schema.name.endswith("dropout"):  # which returns its input
            return node
        assert isinstance(maker, fx.Node), "it has a target"
        node = maker.args[0] if maker.args else None
    return None


def _order(value: Any) -> list[int] | None:
    """The dims of a dense tensor of fixed extents from the outermost to the innermost; None for another."""
    if not isinstance(value, torch.Tensor) or not all(is_static(extent) for extent in value.shape):
        return None
    order = sorted(range(value.dim()), key=lambda dim: (-value.stride(dim), dim))
    dense = value.permute(order).is_contiguous() and value.storage_offset() == 0
    return order if dense and math.prod(value.shape) > 1 else None


def _lay_out(source: fx.Node, order: list[int]) -> None:
    """Lets all readers of ``source`` read a copy whose dims lie in ``order``."""
    graph, readers = source.graph, list(source.users)
    last = source

    def then(target: Any, *arguments: Any, **named: Any) -> None:
        nonlocal last
        with graph.inserting_after(last):
            made = graph.call_function(target, (last, *arguments), named)
        made.meta = {key: source.meta[key] for key in ("stack_trace", "nn_module_stack") if key in source.meta}
        made.meta["val"] = target(last.meta["val"], *arguments, **named)
        last = made

    if order == sorted(order):
        then(aten.clone.default, memory_format=torch.contiguous_format)
    else:
        then(aten.permute.default, order)
        then(aten.clone.default, memory_format=torch.contiguous_format)
        then(aten.permute.default, [order.index(dim) for dim in range(len(order))])
    for reader in readers:
        if reader.op != "output":  # an output is known by the name of its node
            reader.replace_input_with(source, last)
