"""Nodes that look up or write by index, and those that order.

An index from ``-size`` to ``size - 1`` is in range; what is out of it was refused by a check before the node.
"""

from __future__ import annotations

import numpy as np

from lowerkit.capture.onnx.nodes.constants import counted
from lowerkit.capture.onnx.nodes.node import Node, Results, Rule
from lowerkit.capture.onnx.nodes.torch_ops import from_the_front, look_up, take
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    cast,
    expand,
    product,
    size,
    sizes_of,
    slice_axis,
    squeeze,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    build,
    constant_bool,
    constant_int,
    constant_string,
    tensor_info,
)

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def gather(node: Node) -> Results:
    """Takes slices along an axis, by an index of any rank."""
    value, info = node.operand(0), node.info(0)
    axis = info.normalized_axis(node.attribute("axis", 0))
    constant, extent = node.constant(1), info.shape[axis]
    if constant is not None and extent is not None and constant.ndim < 2:
        places = np.where(constant < 0, constant + extent, constant).astype(np.int64)
        if constant.ndim:
            return [take(value, axis, places)]
        return [squeeze(slice_axis(value, axis, int(places), int(places) + 1), axis)]
    indices = node.operand(1) if constant is not None and (constant >= 0).all() else _wrapped(node, 1, value, axis)
    return [look_up(value, [*[None] * axis, cast(indices, "si64")])]


def _wrapped(node: Node, index: int, value: ir.Value, axis: int) -> ir.Value:
    return from_the_front(cast(node.operand(index), "si64"), size(value, axis))


def gather_elements(node: Node) -> Results:
    """Takes an element for each index, along an axis."""
    value, axis = node.operand(0), node.info(0).normalized_axis(node.attribute("axis", 0))
    indices = _wrapped(node, 1, value, axis)
    result = node.info(0).with_shape(tensor_info(indices).shape)
    return build("torch.aten.gather", [value, constant_int(axis), indices, constant_bool(False)], [result.torch_type()])


def _parts(node: Node, first: int) -> list[ir.Value]:
    """The parts of tuples of indices, which lie along the last dim; ``first`` is the axis that the first counts in."""
    tuples, rank = cast(node.operand(1), "si64"), node.info(1).rank
    count = node.info(1).static_dim(-1)
    if first + count > node.info(0).rank:
        raise RefusalError(f"tuples of {count} indices into {node.info(0)}")
    parts = [squeeze(slice_axis(tuples, rank - 1, place, place + 1), rank - 1) for place in range(count)]
    return [from_the_front(part, size(node.operand(0), first + place)) for place, part in enumerate(parts)]


def gather_tuples(node: Node) -> Results:
    """GatherND: takes slices by tuples of indices, behind dims that both operands have."""
    value, batch = node.operand(0), node.attribute("batch_dims", 0)
    parts = _parts(node, batch)
    if not parts:
        raise RefusalError("tuples of no indices")
    rank = node.info(1).rank - 1
    for axis in reversed(range(batch)):
        rows = counted(size(value, axis))
        for _ in range(rank - 1 - axis):
            rows = unsqueeze(rows, tensor_info(rows).rank)
        parts.insert(0, rows)
    return [look_up(value, parts)]


def scatter_elements(node: Node) -> Results:
    """Writes an element for each index, along an axis; updates of one place are reduced."""
    axis = node.info(0).normalized_axis(node.attribute("axis", 0))
    return [
        _written(
            node.operand(0),
            axis,
            _wrapped(node, 1, node.operand(0), axis),
            node.operand(2),
            node.attribute("reduction", ""),
        )
    ]


def _written(value: ir.Value, axis: int, indices: ir.Value, updates: ir.Value, reduction: str) -> ir.Value:
    operands = [value, constant_int(axis), indices, updates]
    if reduction not in _REDUCTIONS:
        return build("torch.aten.scatter.src", operands, [value.type])[0]
    operands += [constant_string(_REDUCTIONS[reduction]), constant_bool(True)]
    return build("torch.aten.scatter_reduce.two", operands, [value.type])[0]


def scatter_tuples(node: Node) -> Results:
    """ScatterND: writes slices by tuples of indices, which become one number each."""
    value, reduction = node.operand(0), node.attribute("reduction", "none")
    parts = _parts(node, 0)
    if not parts:
        raise RefusalError("tuples of no indices")
    sizes, places = sizes_of(value), parts[0]
    for extent, part in zip(sizes[1:], parts[1:], strict=False):
        places = binary("add", binary_scalar("mul", places, extent), part)
    count, rest = product(sizes_of(places)), sizes[len(parts) :]
    places = view(places, [count, *[1] * len(rest)])
    flat = view(value, [product(sizes[: len(parts)]), *rest])
    updates = view(node.operand(2), [count, *rest])
    if rest:
        places = expand(places, [count, *rest])
    return [view(_written(flat, 0, places, updates, reduction), sizes)]


def depends_on_data(node: Node) -> Results:
    """Refuses a node of constants that were not folded, or of what is computed."""
    raise RefusalError("the size of the result depends on data")


def compress(node: Node) -> Results:
    """Takes the positions for which a constant condition holds."""
    condition = node.constant(1)
    if condition is None:
        return depends_on_data(node)
    value, axis = node.operand(0), node.attribute("axis", None)
    if axis is None:
        value, axis = view(value, [product(sizes_of(value))]), 0
    return [take(value, tensor_info(value).normalized_axis(axis), np.flatnonzero(condition))]


def top(node: Node) -> Results:
    """TopK: the largest or smallest elements along an axis, and where they were."""
    value, info = node.operand(0), node.info(0)
    axis = info.normalized_axis(node.attribute("axis", -1))
    count = node.integers(1)[0]
    result = info.with_shape([count if place == axis else extent for place, extent in enumerate(info.shape)])
    flags = [constant_bool(bool(node.attribute(name, 1))) for name in ("largest", "sorted")]
    types = [result.torch_type(), result.with_dtype("si64").torch_type()]
    return [*build("torch.aten.topk", [value, constant_int(count), constant_int(axis), *flags], types)]


RULES: dict[str, Rule] = {
    "Compress": compress,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_tuples,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_tuples,
    **dict.fromkeys(("NonMaxSuppression", "NonZero", "Unique"), depends_on_data),
    "TopK": top,
}
