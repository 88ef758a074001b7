"""Puts a check before each look-up and write by index of an exported graph, as the user wrote it.

Which values an index may have is a matter of the op: ``embedding``, ``gather``, ``scatter`` and their kin refuse those
below 0, indexing by brackets, ``index_fill``, ``take`` and ``put`` count them from the end, and a class of ``-100``
means that a sample has no loss. What an op is written out of says other things, so the graph gets its checks before
anything is decomposed (:mod:`checked_indices`); internal look-ups of a decomposition get none.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import node as fx_node
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from lowerkit.capture.torch_export.graph.checked_indices import CHECKED_INDICES
from lowerkit.capture.torch_export.lifted_states import with_graph
from lowerkit.capture.torch_export.node_schemas import named_arguments, operator_name
from lowerkit.capture.torch_export.operators import aten

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)

_END = 2**63 - 1
Extent = Any
"""An int, or a node that gives one."""


@dataclass(frozen=True)
class _Check:
    """``index`` is into extents of ``data``, the product of ``dims``; or into ``size`` where there is no data.

    With ``ends`` it holds where bags begin: at 0, in order, and the extent itself is a place. ``factors`` are further
    extents of the product; ``first`` is the number of the first place.
    """

    index: fx.Node
    data: fx.Node | None
    dims: Sequence[int] = ()
    size: int = 0
    wraps: bool = False
    exempt: int | None = None
    ends: bool = False
    factors: Sequence[Extent] = ()
    first: int = 0


_Arguments = Mapping[str, Any]
_Rule = Callable[[_Arguments], Iterator[_Check]]


def with_index_checks(exported: ExportedProgram) -> ExportedProgram:
    """Returns a program with a check before each look-up by data; ``exported`` itself, unchanged, without look-ups."""
    if not any(_concerns(graph) for graph in _graphs(exported.graph_module)):
        return exported
    if any(_is_batched(node) for graph in _graphs(exported.graph_module) for node in graph.nodes):
        exported = exported.run_decompositions({})
    module = _copied(exported.graph_module)
    for graph in _graphs(module):
        for node in list(graph.nodes):
            _check_node(node)
    return with_graph(exported, module, module.graph, copy.deepcopy(exported.graph_signature))


def _graphs(module: fx.GraphModule) -> Iterator[fx.Graph]:
    """Yields the graph of a module and of the bodies that are submodules of it."""
    yield module.graph
    for child in module.children():
        if isinstance(child, fx.GraphModule):
            yield from _graphs(child)


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graphs, with the tensors and names of the original."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for old, new in zip(module.graph.nodes, graph.nodes, strict=True):
        new.name = old.name
        new.meta = dict(old.meta)
    holder = torch.nn.Module()
    for name, child in module.named_children():
        holder.add_module(name, _copied(child) if isinstance(child, fx.GraphModule) else child)
    for name in {str(node.target).partition(".")[0] for node in graph.find_nodes(op="get_attr")}:
        if name not in dict(holder.named_children()):
            setattr(holder, name, getattr(module, name))
    copied = fx.GraphModule(holder, graph)
    copied.meta = dict(module.meta)
    return copied


def _concerns(graph: fx.Graph) -> bool:
    return any(_rule(node) is not None for node in graph.nodes)


def _is_batched(node: fx.Node) -> bool:
    """Whether a node is inside of ``torch.vmap``, where tensors stand for one of a batch, until it is traced again."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


def _rule(node: fx.Node) -> _Rule | None:
    return _RULES.get(operator_name(node))


def _check_node(node: fx.Node) -> None:
    rule = _rule(node)
    if rule is None:
        return
    arguments = named_arguments(node)
    for check in rule(arguments):
        value = check.index.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype not in _INTEGERS:
            continue
        with node.graph.inserting_before(node):
            checked = _insert(node, check)
        node.args = fx_node.map_arg(node.args, lambda item, c=check, new=checked: new if item is c.index else item)
        node.kwargs = fx_node.map_arg(node.kwargs, lambda item, c=check, new=checked: new if item is c.index else item)


def _insert(node: fx.Node, check: _Check) -> fx.Node:
    graph = node.graph
    place = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack", "from_node") if key in node.meta}
    size: Extent = check.size
    if check.data is not None:
        shape = check.data.meta["val"].shape
        size = 1
        for dim in check.dims:
            extent: Extent = int(shape[dim]) if is_concrete_int(shape[dim]) else None
            if extent is None:
                extent = graph.call_function(aten.sym_size.int, (check.data, dim))
                extent.meta = {**place, "val": shape[dim]}
            size = extent if isinstance(size, int) and size == 1 else _product(graph, size, extent, place)
    for factor in check.factors:
        size = _product(graph, size, factor, place)
    if check.ends:
        return _checked_ends(node, check, size, place)
    if check.first == 0:
        return _checked(node, check, check.index, size, node.name, place)
    shifted = _call(graph, place, aten.sub.Tensor, check.index, check.first)
    return _call(graph, place, aten.add.Tensor, _checked(node, check, shifted, size, node.name, place), check.first)


def _checked_ends(node: fx.Node, check: _Check, size: Extent, place: dict[str, Any]) -> fx.Node:
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


def _checked(node: fx.Node, check: _Check, index: fx.Node, size: Extent, stem: str, place: dict[str, Any]) -> fx.Node:
    arguments = (index, [size], check.wraps, check.exempt, operator_name(node).removeprefix("_"))
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
    if isinstance(one, int) and isinstance(other, int):
        return one * other
    return _call(graph, place, operator.mul, one, other)


# The rules, by what the arguments are called in PyTorch's schemas.


def _rank(node: fx.Node) -> int:
    return node.meta["val"].dim()


def _along_dim(index: str, *, wraps: bool = False, data: str = "self") -> _Rule:
    def rule(arguments: _Arguments) -> Iterator[_Check]:
        value, dim = arguments[data], arguments["dim"]
        if _rank(value) == 0:
            yield _Check(arguments[index], None, size=1, wraps=wraps)
        else:
            yield _Check(arguments[index], value, (int(dim) % _rank(value),), wraps=wraps)

    return rule


def _of_all(index: str, *, wraps: bool) -> _Rule:
    """Positions in the flattened tensor."""

    def rule(arguments: _Arguments) -> Iterator[_Check]:
        value = arguments["self"]
        if arguments.get("dim") is None:
            yield _Check(arguments[index], value, range(_rank(value)), wraps=wraps)

    return rule


def _embedding(arguments: _Arguments) -> Iterator[_Check]:
    yield _Check(arguments["indices"], arguments["weight"], (0,))
    if isinstance(offsets := arguments.get("offsets"), fx.Node):
        yield _Check(offsets, arguments["indices"], (0,), ends=True)


def _index(arguments: _Arguments) -> Iterator[_Check]:
    """A list with a tensor or None for each leading dim; a mask stands for as many dims as it has."""
    dim = 0
    for item in arguments["indices"]:
        if isinstance(item, fx.Node) and item.meta["val"].dtype in (torch.bool, torch.uint8):
            dim += _rank(item)
            continue
        if isinstance(item, fx.Node):
            yield _Check(item, arguments["self"], (dim,), wraps=True)
        dim += 1


def _classes(arguments: _Arguments) -> Iterator[_Check]:
    """Losses by class: the classes are dim 1, or dim 0 of a single sample."""
    scores = arguments["self"]
    exempt = arguments.get("ignore_index")
    yield _Check(arguments["target"], scores, (min(1, _rank(scores) - 1),), exempt=exempt)


def _labels(arguments: _Arguments) -> Iterator[_Check]:
    """Several classes for each sample, the last dim; the list ends where one is -1."""
    yield _Check(arguments["target"], arguments["self"], (_rank(arguments["self"]) - 1,), exempt=-1)


def _one_hot(arguments: _Arguments) -> Iterator[_Check]:
    if isinstance(arguments["num_classes"], int) and arguments["num_classes"] > 0:
        yield _Check(arguments["self"], None, size=arguments["num_classes"])


def _unpooled(arguments: _Arguments) -> Iterator[_Check]:
    yield _Check(arguments["indices"], None, size=1, factors=arguments["output_size"])


def _sorter(arguments: _Arguments) -> Iterator[_Check]:
    if isinstance(sorter := arguments.get("sorter"), fx.Node):
        yield _Check(sorter, sorter, (_rank(sorter) - 1,))


def _pivots(data: str, pivots: str) -> _Rule:
    """Rows of a matrix that change places, counted from 1."""

    def rule(arguments: _Arguments) -> Iterator[_Check]:
        yield _Check(arguments[pivots], arguments[data], (_rank(arguments[data]) - 2,), first=1)

    return rule


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), _embedding),
    **dict.fromkeys(("index", "index_put", "_index_put_impl"), _index),
    **dict.fromkeys(("index_select", "index_copy", "index_add", "index_reduce", "gather"), _along_dim("index")),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), _along_dim("index")),
    "index_fill": _along_dim("index", wraps=True),
    **dict.fromkeys(("take", "put"), _of_all("index", wraps=True)),
    "take_along_dim": _of_all("indices", wraps=False),
    **dict.fromkeys(("nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward"), _classes),
    **dict.fromkeys(("cross_entropy_loss", "multi_margin_loss"), _classes),
    **dict.fromkeys(("multilabel_margin_loss", "multilabel_margin_loss_forward"), _labels),
    "one_hot": _one_hot,
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), _unpooled),
    "searchsorted": _sorter,
    "lu_unpack": _pivots("LU_data", "LU_pivots"),
    "linalg_lu_solve": _pivots("LU", "pivots"),
}
"""By the name of the op, without the underscores of one that changes its argument."""
