"""Writes through a view that PyTorch cannot bring back to the tensor behind: an expanded one, or windows of it.

Eager stores each value where its element lies: ``y.expand(4, 3).zero_()`` clears ``y``. PyTorch's functionalization
makes a new ``y`` of the view instead. Out of an expanded one it adds up what has changed in each element; out of
windows (``unfold``) it adds those that overlap, and takes 0 for the elements that are in none. A program that is made
of such a write computes something else, so it is refused. So is ``select_scatter`` (``slice_scatter`` and the like) of
windows that overlap: eager's copy lies as they do, and a write shows in all of them.
"""

# torch tells ops and their schemas apart by private names only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.node_schemas import named_arguments, operator_name
from lowerkit.errors import UnsupportedError
from lowerkit.program.locations import users_line

_WRITES_TO_A_COPY = frozenset({"select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"})


def refuse_overlapping_writes(graph: fx.Graph) -> None:
    """Raises UnsupportedError, LK4001, with all such writes of an exported graph that is not functional yet."""
    found: list[str] = []
    for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
        views = [view for written in _aliased(node, written=True) for view in _views(written)]
        if any(_is_lossy(view) for view in views) or _writes_to_windows(node):
            line = users_line(node.meta.get("stack_trace"))
            found.append(f"{node.name}: {node.target}" + (f" at {line}" if line else ""))
    if found:
        raise UnsupportedError(
            "LK4001",
            "a write through an expanded tensor, or through windows that leave elements out or share them",
            details=found,
            hint="write to the tensor before it is expanded, or to a copy: y.expand(...).clone()",
        )


def _writes_to_windows(node: fx.Node) -> bool:
    """Whether ``node`` copies a tensor whose elements share memory as it lies, to write to the copy.

    Not of an expanded one, which eager copies element by element.
    """
    if operator_name(node) not in _WRITES_TO_A_COPY:
        return False
    copied = named_arguments(node)["self"]
    value = copied.meta["val"]
    made = [operator_name(view) for view in _views(copied)]
    expanded = any(stride == 0 and extent != 1 for stride, extent in zip(value.stride(), value.shape, strict=True))
    return ("unfold" in made or "as_strided" in made) and not expanded and _overlaps(value)


def _aliased(node: fx.Node, *, written: bool) -> list[fx.Node]:
    """The tensors that ``node`` writes to, or those that its results show in another way."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    given = named_arguments(node)
    aliases = [a for a in node.target._schema.arguments if a.alias_info and (a.alias_info.is_write or not written)]
    leaves = pytree.tree_leaves([given[argument.name] for argument in aliases])
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


def _views(value: fx.Node) -> Iterator[fx.Node]:
    """Yields ``value`` and what it is a view of, and of what that is one."""
    yield value
    for behind in _aliased(value, written=False):
        yield from _views(behind)


def _is_lossy(view: fx.Node) -> bool:
    """Whether ``view`` expands, or cuts windows that do not hold each element once, as far as extents are known."""
    kind = operator_name(view)
    if kind in ("expand", "expand_as", "broadcast_to"):
        (behind,) = _aliased(view, written=False)
        return _extents(view) != _extents(behind)
    if kind == "unfold":
        given = named_arguments(view)
        size, step = given["size"], given["step"]
        extents = _extents(given["self"])
        extent = extents[given["dimension"]] if extents else 1
        whole = isinstance(extent, int) and isinstance(size, int) and size > 0
        return not whole or step != size or extent % size != 0
    return kind == "as_strided" and _overlaps(view.meta["val"])


def _extents(node: fx.Node) -> list[int | torch.SymInt]:
    return list(node.meta["val"].shape)


def _overlaps(value: torch.Tensor) -> bool:
    """Whether an element may lie where another does."""
    pairs: list[tuple[Any, Any]] = list(zip(value.stride(), value.shape, strict=True))
    if any(isinstance(number, torch.SymInt) for pair in pairs for number in pair):
        return True
    reach = 0  # the furthest element along the dims of smaller strides
    for stride, extent in sorted(pairs):
        if extent > 1:
            if stride <= reach:
                return 0 not in value.shape
            reach += stride * (extent - 1)
    return False
