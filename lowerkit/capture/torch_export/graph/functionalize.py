"""Makes an exported graph functional by rewriting it, where that is plain to see; else by tracing it again.

Vocabulary
    fresh      a tensor that an op made, as opposed to a view of another or an input.
    in place   ``add_``, ``relu_``, ...: the op without the underscore gives the same value, and who reads the old
               tensor later must read the new one.

Tracing again (``run_decompositions``) takes longer than the export itself: seconds for each of the larger models.
Almost every graph needs nothing of it: a few in-place ops on fresh tensors that nobody views, and ops that say how
memory is laid out (``contiguous``, ``reshape``), which mean nothing to values. Whatever is not of that kind is left to
PyTorch: any mutation of an input, a buffer or a viewed tensor, symbolic dims, control flow, training.
"""

# torch and torch-mlir are subclassed and told apart by names that they keep private; the versions are pinned.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.dims import is_static
from lowerkit.program.functional_program import FunctionalProgram

_CONTROL_FLOW = (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop)


def rewritten(exported: ExportedProgram) -> FunctionalProgram | None:
    """Returns a functional copy, or None where it takes more than rewriting."""
    graph = _rewritten_graph(exported.graph, names_matter=True)
    if graph is None:
        return None
    program = FunctionalProgram.of(exported)
    program.graph = graph
    program.graph_signature = copy.deepcopy(exported.graph_signature)
    program.constants = dict(exported.constants)
    return program


def _rewritten_graph(source: fx.Graph, *, names_matter: bool) -> fx.Graph | None:
    """A functional copy of a graph and of the bodies of its control flow, or None.

    The signature of a program knows inputs and outputs by the names of their nodes; nothing knows those of a body.
    """
    graph = fx.Graph(owning_module=source.owning_module)
    copied: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(source, copied))
    if names_matter and [node.name for node in graph.nodes] != [node.name for node in source.nodes]:
        return None
    if any(node.op not in ("call_function", "placeholder", "output", "get_attr") for node in graph.nodes):
        return None
    bodies = _rewritten_bodies(graph)
    if bodies is None:
        return None
    order = {node: position for position, node in enumerate(graph.nodes)}
    calls = [node for node in graph.nodes if node.op == "call_function"]
    # In-place ops first, while the graph still shows which tensors share memory.
    if not all(_out_of_place(node, order) for node in calls if _is_in_place(node)):
        return None
    if not all(_rewrite(node) for node in calls):
        return None
    return fx.GraphModule(bodies, graph).graph if graph.find_nodes(op="get_attr") else graph


def _rewritten_bodies(graph: fx.Graph) -> torch.nn.Module | None:
    """A module that holds functional copies of the bodies that ``graph`` names, and its constants; or None."""
    holder = torch.nn.Module()
    for node in graph.find_nodes(op="get_attr"):
        named = getattr(graph.owning_module, str(node.target))
        if isinstance(named, torch.Tensor):
            holder.register_buffer(str(node.target), named, persistent=False)
            continue
        if not all(user.target in _CONTROL_FLOW for user in node.users):
            return None
        inner = _rewritten_graph(named.graph, names_matter=False) if isinstance(named, fx.GraphModule) else None
        if inner is None:
            return None
        owned = bool(inner.find_nodes(op="get_attr"))
        holder.add_module(str(node.target), fx.GraphModule((owned and inner.owning_module) or {}, inner))
    return holder


def callable_of(target: Any) -> Any:
    """Returns what computes a node's value: capture writes every reshape as a view, and only tensors have strides."""
    return aten.reshape.default if target is aten.view.default else target


def _is_in_place(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and target not in _RULES


def _rewrite(node: fx.Node) -> bool:
    """Makes one node functional; returns False where it cannot."""
    if not all(is_static(extent) for value in _tensors(node) for extent in value.shape):
        return False
    if any(isinstance(value, torch.SymInt) for value in pytree.tree_leaves(node.meta.get("val"))):
        return False
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target in _CONTROL_FLOW or getattr(target, "__module__", "") == "_operator"
    rule = _RULES.get(target)
    if rule is not None:
        return rule(node)
    # A composite view (narrow, movedim, ...) has to become the views that it is made of.
    return not (_is_view(target) and target._can_decompose())


def _out_of_place(node: fx.Node, order: dict[fx.Node, int]) -> bool:
    target = node.target
    assert isinstance(target, torch._ops.OpOverload), "the caller checked"
    name = target._schema.name.removeprefix("aten::")
    base = node.args[0] if node.args else None
    if not name.endswith("_") or name.endswith("__") or not isinstance(base, fx.Node) or not _is_fresh(base):
        return False
    writes = [argument.name for argument in target._schema.arguments if argument.alias_info is not None]
    if writes != [target._schema.arguments[0].name]:
        return False
    if any(user.op == "output" or (user is not node and _may_share(user)) for user in base.users):
        return False  # an output is known by the name of its node
    pure = pure_form(target)
    if pure is None or _shape_and_type(base) != _shape_and_type(node):
        return False
    for user in list(base.users):
        if user is not node and order[user] > order[node]:
            user.replace_input_with(base, node)
    node.target = pure
    return True


def pure_form(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Returns the op that gives what an in-place op writes; None where there is none."""
    name = target._schema.name.removeprefix("aten::")
    return getattr(getattr(aten, name[:-1], None), target._overloadname, None) if name.endswith("_") else None


def _is_fresh(node: fx.Node) -> bool:
    """Whether a node made its own memory, and alone: not a view, an input, or one of several results."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    return not _is_view(target) and len(target._schema.returns) == 1 and target not in _SAME


def _may_share(user: fx.Node) -> bool:
    """Whether what ``user`` returns may be a view of what it reads."""
    target = user.target
    return not isinstance(target, torch._ops.OpOverload) or _is_view(target) or target in _SAME


def _is_view(target: torch._ops.OpOverload) -> bool:
    return any(result.alias_info is not None for result in target._schema.returns) and not target._schema.is_mutable


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def _shape_and_type(node: fx.Node) -> tuple[Any, ...]:
    (value,) = _tensors(node)
    return tuple(value.shape), value.dtype


def _same(node: fx.Node) -> bool:
    """Replaces a node by its first argument, which has the same value."""
    source = node.args[0]
    assert isinstance(source, fx.Node), "a tensor argument is a node"
    if _shape_and_type(source) != _shape_and_type(node):
        return False
    if _is_laid_out_anew(source, node) and _reads_storage(node.graph):
        # A copy of another layout: what `as_strided` reads is its memory, which its strides tell.
        node.target, node.args, node.kwargs = aten.clone.default, (source,), {"memory_format": _layout(node)}
        return True
    if any(user.op == "output" for user in node.users):  # an output is known by the name of its node
        node.target, node.args, node.kwargs = aten.alias.default, (source,), {}
        return True
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)
    return True


def _is_laid_out_anew(source: fx.Node, node: fx.Node) -> bool:
    (before,), (after,) = _tensors(source), _tensors(node)
    return (before.stride(), before.storage_offset()) != (after.stride(), after.storage_offset())


def _layout(node: fx.Node) -> torch.memory_format:
    """The memory format that gives a copy the strides of ``node``."""
    (value,) = _tensors(node)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    other = formats.get(value.dim(), torch.contiguous_format)
    fits = not value.is_contiguous() and value.is_contiguous(memory_format=other)
    return other if fits else torch.contiguous_format


def _reads_storage(graph: fx.Graph) -> bool:
    """Whether an op reads or writes elements by where they lie in memory."""
    return any(node.op == "call_function" and node.target in BY_STORAGE for node in graph.nodes)


def _dropout(node: fx.Node) -> bool:
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("train", True)
    return training is False and _same(node)


def _batch_norm(node: fx.Node) -> bool:
    return node.args[5] is False


def _reshape(node: fx.Node) -> bool:
    """Any reshape of a value is a view of the shape that comes out."""
    (value,) = _tensors(node)
    node.target = aten.view.default
    # An extent that tracing found fixed is a symbol still, with one value.
    node.args, node.kwargs = (node.args[0], [int(extent) for extent in value.shape]), {}
    return True


def _convert(node: fx.Node) -> bool:
    """``to`` another element type is a conversion; ``to`` anything else is nothing, on one device."""
    source = node.args[0]
    assert isinstance(source, fx.Node), "a tensor argument is a node"
    (before,), (after,) = _tensors(source), _tensors(node)
    if before.device != after.device:
        return False
    if before.dtype == after.dtype:
        return _same(node)
    node.target = aten._to_copy.default
    node.args, node.kwargs = (source,), {"dtype": after.dtype}
    return True


BY_STORAGE = frozenset(
    {aten.as_strided.default, aten.as_strided_.default, aten.as_strided_copy.default, aten.as_strided_scatter.default}
)

_SAME = frozenset(
    {
        aten.contiguous.default,
        aten.detach.default,
        aten.detach_.default,
        aten.alias.default,
        aten.lift_fresh.default,
        aten.lift_fresh_copy.default,
        aten.dropout.default,
        aten.dropout_.default,
        aten.feature_dropout.default,
        aten.alpha_dropout.default,
        aten.reshape.default,
        aten.to.dtype,
        aten.to.dtype_layout,
        aten.to.device,
        aten.to.other,
        aten.type_as.default,
        aten.flatten.using_ints,
    }
)
"""Ops whose result may be their argument itself."""

_RULES: dict[Any, Callable[[fx.Node], bool]] = {
    aten.batch_norm.default: _batch_norm,
    aten.contiguous.default: _same,
    aten.detach.default: _same,
    aten.detach_.default: _same,
    aten.alias.default: _same,
    aten.lift_fresh.default: _same,
    aten.lift_fresh_copy.default: _same,
    aten.dropout.default: _dropout,
    aten.dropout_.default: _dropout,
    aten.feature_dropout.default: _dropout,
    aten.alpha_dropout.default: _dropout,
    aten.reshape.default: _reshape,
    aten.flatten.using_ints: _reshape,
    aten.unflatten.int: _reshape,
    aten.view_as.default: _reshape,
    aten.to.dtype: _convert,
    aten.to.dtype_layout: _convert,
    aten.to.device: _convert,
    aten.to.other: _convert,
    aten.type_as.default: _convert,
}
