"""Where an extent comes from: the dimension of an earlier value that it is copied from."""

from __future__ import annotations

from typing import TypeAlias

from lowerkit.mlir import ir
from lowerkit.passes.elementwise import as_elementwise
from lowerkit.passes.layout.transposed_views import reassociation_of
from lowerkit.passes.rewriting import DYNAMIC, defining_op, shape_of

Origin: TypeAlias = tuple[ir.Value, int]
"""A dimension of a value."""

SHAPE_KEEPING = frozenset(
    {
        *("lk.softmax", "lk.layer_norm", "lk.rms_norm", "lk.group_norm", "lk.rope", "lk.cumulative", "lk.scatter"),
        *("lk.quantize", "lk.dequantize", "lk.requant"),
    }
)
"""Ops whose result has the extents of the first operand in every dimension."""

_WINDOWED = frozenset({"lk.conv", "lk.conv_transpose", "lk.max_pool", "lk.avg_pool", "lk.resize"})


def origin(value: ir.Value, axis: int) -> Origin:
    """Returns the dimension that the extent of a dimension is copied from, as far back as it can be traced."""
    while True:
        op = defining_op(value)
        step = None if op is None else _step(op, axis)
        if step is None:
            return value, axis
        value, axis = step


def _step(op: ir.Operation, axis: int) -> Origin | None:
    if op.name in SHAPE_KEEPING:
        return op.operands[0], axis
    if op.name in _WINDOWED:
        return (op.operands[0], axis) if axis == 0 else None
    if op.name == "lk.matmul":
        return _matmul_step(op, axis)
    if op.name == "lk.attention":  # [B, H, M, D] x [B, Hk, T, D] x [B, Hk, T, Dv] -> [B, H, M, Dv]
        return (op.operands[2], 3) if axis == 3 else (op.operands[0], axis)
    if op.name == "lk.gather":
        return _gather_step(op, axis)
    if op.name == "lk.reduce":
        return _reduce_step(op, axis)
    if op.name == "tensor.concat":
        return (op.operands[0], axis) if axis != ir.IntegerAttr(op.attributes["dim"]).value else None
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
        return _view_step(op, axis)
    view = as_elementwise(op)
    if view is None:
        return None
    for operand, index_map in zip(view.inputs, view.maps, strict=True):
        if axis in index_map:
            return operand, index_map.index(axis)
    return None


def _matmul_step(op: ir.Operation, axis: int) -> Origin | None:
    rank = len(shape_of(op.results[0]))
    for number, own, flag in ((0, rank - 2, "transpose_lhs"), (1, rank - 1, "transpose_rhs")):
        if axis == own:
            last = len(shape_of(op.operands[number])) - 1
            swapped = ir.BoolAttr(op.attributes[flag]).value
            return op.operands[number], last - 1 if (number == 0) != swapped else last
    for operand in op.operands:  # batch dimensions are aligned at the end; one of extent one is broadcast
        shape = shape_of(operand)
        own = axis - (rank - len(shape))
        if own >= 0 and shape[own] == DYNAMIC and all(len(shape_of(other)) == 2 for other in op.operands[1:]):
            return operand, own
    return None


def _gather_step(op: ir.Operation, axis: int) -> Origin:
    at = ir.IntegerAttr(op.attributes["axis"]).value
    indices = len(shape_of(op.operands[1]))
    at += len(shape_of(op.operands[0])) if at < 0 else 0
    if axis < at:
        return op.operands[0], axis
    return (op.operands[1], axis - at) if axis < at + indices else (op.operands[0], axis - indices + 1)


def _reduce_step(op: ir.Operation, axis: int) -> Origin | None:
    rank = len(shape_of(op.operands[0]))
    reduced = {number % rank for number in ir.DenseI64ArrayAttr(op.attributes["axes"])}
    if ir.BoolAttr(op.attributes["keep_dims"]).value:
        return None if axis in reduced else (op.operands[0], axis)
    return op.operands[0], [number for number in range(rank) if number not in reduced][axis]


def _view_step(op: ir.Operation, axis: int) -> Origin | None:
    expands = op.name == "tensor.expand_shape"
    for number, group in enumerate(reassociation_of(op)):
        if len(group) == 1 and (group[0] if expands else number) == axis:
            return op.operands[0], number if expands else group[0]
    return None
