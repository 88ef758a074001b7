"""ONNX nodes on sizes: what they move or compute, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lowerkit.capture.onnx.nodes.node import Node
from lowerkit.capture.onnx.nodes.sizes import ARITHMETIC, LARGEST_SIZES, Size, Sizes
from lowerkit.passes.raising.torch_dialect.torch_build import product, sizes_of
from lowerkit.passes.raising.torch_dialect.torch_ir import RefusalError

_Rule: TypeAlias = Callable[[Node], Sizes | None]


def followed_sizes(node: Node) -> Sizes | None:
    """Returns the sizes that a node gives; None for a node whose result is a tensor like any other."""
    rule = _RULES.get(node.op_type)
    if rule is None:
        return None
    if node.op_type in ("Shape", "Size"):
        return rule(node)
    if not any(node.is_followed(index) for index in range(len(node.proto.input))):
        return None
    try:
        found = rule(node)
    except RefusalError:  # an operand that is no sizes
        return None
    return found if found is not None and len(found.items) <= LARGEST_SIZES else None


def _operand(node: Node, index: int) -> Sizes:
    found = node.known_sizes(index)
    if found is None:
        raise RefusalError("computed from elements of tensors")
    return found


def _shape(node: Node) -> Sizes:
    sizes = sizes_of(node.operand(0))
    return Sizes(sizes[slice(node.attribute("start", 0), node.attribute("end", len(sizes)))], 1)


def _size(node: Node) -> Sizes:
    return Sizes([product(sizes_of(node.operand(0)))], 0)


def _same(node: Node) -> Sizes:
    return _operand(node, 0)


def _cast(node: Node) -> Sizes | None:
    return _operand(node, 0) if node.dtype in ("si64", "si32") else None


def _gather(node: Node) -> Sizes:
    data, indices = _operand(node, 0), node.constant(1)
    if indices is None or data.rank != 1 or indices.ndim > 1:
        raise RefusalError("a computed place")
    return Sizes([data.items[int(place)] for place in indices.reshape(-1)], indices.ndim)


def _slice(node: Node) -> Sizes:
    data = _operand(node, 0)
    start, end = node.integers(1)[0], node.integers(2)[0]
    step = node.integers(4)[0] if node.has(4) else 1
    last = None if step < 0 and end < -len(data.items) else end
    return Sizes(data.items[slice(start, last, step)], 1)


def _concatenated(node: Node) -> Sizes:
    operands = [_operand(node, index) for index in range(len(node.proto.input))]
    return Sizes([item for operand in operands for item in operand.items], 1)


def _reshaped(node: Node) -> Sizes | None:
    data = _operand(node, 0)
    if node.declared[0] is None or node.declared[0].rank > 1 or (data.rank == 0 and node.op_type == "Squeeze"):
        return None
    return Sizes(data.items, node.declared[0].rank)


def _elementwise(node: Node) -> Sizes | None:
    operands = [_operand(node, index) for index in range(len(node.proto.input))]
    count = max(len(operand.items) for operand in operands) if all(operand.items for operand in operands) else 0
    found: list[Size] = []
    for parts in zip(*[operand.spread(count) for operand in operands], strict=True) if count else ():
        total = parts[0]
        for part in parts[1:]:
            item = ARITHMETIC[node.op_type](total, part)
            if item is None:
                return None
            total = item
        found.append(total)
    return Sizes(found, max(operand.rank for operand in operands))


def _chosen(node: Node) -> Sizes | None:
    conditions, left, right = (_operand(node, index) for index in range(3))
    count = max(len(conditions.items), len(left.items), len(right.items))
    if conditions.numbers is None:
        return None
    parts = zip(*[operand.spread(count) for operand in (conditions, left, right)], strict=True)
    rank = max(conditions.rank, left.rank, right.rank)
    return Sizes([one if condition else other for condition, one, other in parts], rank)


def _product(node: Node) -> Sizes | None:
    data, axes = _operand(node, 0), node.axes(1)
    if data.rank != 1 or (not axes and node.attribute("noop_with_empty_axes", 0)):
        return None
    return Sizes([product(data.items)], node.attribute("keepdims", 1))


_RULES: dict[str, _Rule] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": _same,
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concatenated,
    **dict.fromkeys(("Squeeze", "Unsqueeze", "Reshape", "Flatten"), _reshaped),
    **dict.fromkeys(ARITHMETIC, _elementwise),
    "Where": _chosen,
    "ReduceProd": _product,
}
