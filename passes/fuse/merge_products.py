"""Makes one product of those that attention reads from one input: queries, keys and values by one matrix.

``x @ Wq``, ``x @ Wk`` and ``x @ Wv`` become ``x @ [Wq Wk Wv]``, with one bias where each has one, and slices of it.
That pays where the readers of a slice read it where it lies, as attention and rotary embeddings do; the slices of
others would have to be copied out.

Bytes saved: ``x`` is read once; a larger product fills more of a card, and there is one launch instead of three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.dialect import MatmulOp, WeightOp
from lowerkit.dialect.linalg_builder import loops, map_elements, sizes_of
from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import as_elementwise
from lowerkit.passes.rewriting import (
    erase_dead,
    main_block,
    operations,
    positions,
    replace,
    shape_of,
    users,
    weight_symbol,
)
from lowerkit.program.weights import Array, Shard

_READERS = frozenset({"lk.attention", "lk.rope"})
_VIEWS = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "linalg.transpose"})


@dataclass(frozen=True)
class _Member:
    """A product, its weight by name, and its bias by name with the op that adds it; ``""`` without one."""

    product: ir.Operation
    weight: str
    bias: str
    last: ir.Operation


@dataclass(frozen=True)
class MergeProducts(Pass):
    """Merges products with weights that share their left operand and whose results attention reads.

    Precondition: stage layout; shapes are static.
    """

    name: ClassVar[str] = "merge-products"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        groups: dict[tuple[ir.Value, str, tuple[Shard | None, ...]], list[_Member]] = {}
        for op in operations(block):
            member = _member(op) if op.name == "lk.matmul" else None
            if member is not None:
                kind = f"{op.attributes['transpose_rhs']} {op.attributes['accumulate']} {bool(member.bias)}"
                shards = tuple(context.weights.shard(name) for name in (member.weight, member.bias) if name)
                groups.setdefault((op.operands[0], kind, shards), []).append(member)
        changed = False
        for members in groups.values():
            if len(members) > 1:
                _merge(members, context, block)
                changed = True
        if changed:
            erase_dead(block)
        return changed


def _member(product: ir.Operation) -> _Member | None:
    """Reads a product that may be merged; None for another one."""
    weight = weight_symbol(product.operands[1])
    result = ir.RankedTensorType(product.results[0].type)
    if weight is None or len(shape_of(product.operands[1])) != 2 or not result.has_static_shape:
        return None
    if ir.BoolAttr(product.attributes["transpose_lhs"]).value or len(shape_of(product.operands[0])) < 2:
        return None
    readers = users(product.results[0])
    bias, last = "", product
    if len(readers) == 1 and readers[0].name == "linalg.generic":
        bias, last = _bias(readers[0], product.results[0]), readers[0]
        if not bias:
            return None
    return _Member(product, weight, bias, last) if _is_read_in_place(last.results[0]) else None


def _bias(op: ir.Operation, value: ir.Value) -> str:
    """The weight that an op adds to the last dim of ``value``, and that is all it does; ``""`` for another op."""
    view = as_elementwise(op)
    if view is None or len(view.inputs) != 2 or len(op.results) != 1 or op.results[0].type != value.type:
        return ""
    body = operations(view.body)
    if [each.name for each in body] != ["arith.addf", "linalg.yield"]:
        return ""
    added = 0 if view.inputs[1] == value else 1
    rank = view.rank
    if view.inputs[1 - added] != value or view.maps[1 - added] != tuple(range(rank)) or view.maps[added] != (rank - 1,):
        return ""
    summed = {list(view.body.arguments).index(each) for each in body[0].operands if each in list(view.body.arguments)}
    return (weight_symbol(view.inputs[added]) or "") if summed == {0, 1} else ""


def _is_read_in_place(value: ir.Value) -> bool:
    """Whether all that becomes of a value are views that attention or rope reads."""
    readers = users(value)
    return bool(readers) and all(
        each.name in _READERS or (each.name in _VIEWS and _is_read_in_place(each.results[0])) for each in readers
    )


def _merge(members: Sequence[_Member], context: PassContext, block: ir.Block) -> None:
    first = members[0].product
    flipped = ir.BoolAttr(first.attributes["transpose_rhs"]).value
    axis = 0 if flipped else 1
    order = positions(operations(block))
    # In front of the first one: the weights are there, and so is the left operand.
    place = min((member.product for member in members), key=lambda op: order[op])
    with ir.InsertionPoint(place), place.location:
        weight = _joined(context, [member.weight for member in members], members, axis)
        value = MatmulOp.build(
            first.operands[0],
            weight,
            transpose_rhs=flipped,
            accumulate=ir.TypeAttr(first.attributes["accumulate"]).value,
        )
        if members[0].bias:
            bias = _joined(context, [member.bias for member in members], members, 0)
            rank = len(shape_of(value))
            parts = [(value, loops(range(rank))), (bias, loops([rank - 1]))]
            value = map_elements(parts, sizes_of(value), _element(value), _sum)
        pieces: list[ir.Value] = []
        start = 0
        for member in members:
            shape = shape_of(member.last.results[0])
            offsets, ones = [0] * (len(shape) - 1) + [start], [1] * len(shape)
            kind = ir.RankedTensorType(member.last.results[0].type)
            pieces.append(tensor.ExtractSliceOp(kind, value, [], [], [], offsets, shape, ones).result)
            start += shape[-1]
    for member, piece in zip(members, pieces, strict=True):
        replace(member.last, [piece])


def _element(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def _sum(left: ir.Value, right: ir.Value) -> ir.Value:
    return arith.AddFOp(left, right).result


def _joined(context: PassContext, names: Sequence[str], members: Sequence[_Member], axis: int) -> ir.Value:
    """Builds the weight that holds several behind one another along an axis; ranks that share them share it alike."""
    specs = [context.weights.spec(name) for name in names]
    shard = context.weights.shard(names[0])
    outer = 0 if shard is None else len(shard.sizes)
    shape = list(specs[0][1])
    shape[outer + axis] = sum(each[outer + axis] for _, each in specs)
    name = context.weights.unique_name("merged")

    def join(*arrays: Array) -> Array:
        return np.concatenate(arrays, outer + axis)

    context.weights.derive(name, names, join, dtype=specs[0][0], shape=tuple(shape), shard=shard)
    return WeightOp.build(name, ir.RankedTensorType.get(shape[outer:], _element(members[0].product.operands[1])))
