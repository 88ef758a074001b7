"""Pushing transposes through ops whose axes can be renamed: reductions, softmax, pools, concat, pad, slices,
matmul.

Each function gets an op, writes its replacement at the current insertion point and returns the values that take the
place of its results, or None where it must stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.mlir import ir, tensor
from lowerkit.passes.elementwise import as_elementwise
from lowerkit.passes.layout.transposes import build_transpose, inverse, is_identity, moves_units_only, untransposed
from lowerkit.passes.rewriting import DYNAMIC, defining_op, shape_of, weight_symbol


def stored_shape(shape: Sequence[int], permutation: Sequence[int]) -> list[int]:
    """Returns the shape of the source of a transpose whose result has ``shape``."""
    return [shape[axis] for axis in inverse(permutation)]


def _with_source(op: ir.Operation, source: ir.Value, shape: Sequence[int]) -> ir.Operation:
    """Clones ``op`` with another first operand and another shape of its first result."""
    copy = op.clone().operation
    copy.operands[0] = source
    result = copy.results[0]
    result.set_type(ir.RankedTensorType.get(list(shape), ir.RankedTensorType(result.type).element_type))
    return copy


def push_reduce(op: ir.Operation) -> list[ir.Value] | None:
    """Renames the axes of ``lk.reduce``."""
    source, permutation = untransposed(op.operands[0])
    if is_identity(permutation):
        return None
    rank = len(permutation)
    axes = [axis % rank for axis in ir.DenseI64ArrayAttr(op.attributes["axes"])]
    if ir.StringAttr(op.attributes["kind"]).value.startswith("arg") and len(axes) != 1:
        return None  # an index into flattened axes counts in their order
    moved = sorted(permutation[axis] for axis in axes)
    if ir.BoolAttr(op.attributes["keep_dims"]).value:
        restore = permutation
    else:
        kept = [axis for axis in range(rank) if axis not in moved]
        restore = [kept.index(permutation[axis]) for axis in range(rank) if axis not in axes]
    copy = _with_source(op, source, stored_shape(shape_of(op.results[0]), restore))
    copy.attributes["axes"] = ir.DenseI64ArrayAttr.get(moved)
    return [build_transpose(copy.results[0], restore)]


def push_softmax(op: ir.Operation) -> list[ir.Value] | None:
    """Renames the axis of ``lk.softmax``, unless that would turn rows into columns."""
    source, permutation = untransposed(op.operands[0])
    rank = len(permutation)
    axis = ir.IntegerAttr(op.attributes["axis"]).value % rank
    if is_identity(permutation) or (axis == rank - 1 and permutation[axis] != rank - 1):
        return None
    copy = _with_source(op, source, shape_of(source))
    copy.attributes["axis"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), permutation[axis])
    return [build_transpose(copy.results[0], permutation)]


def push_matmul(op: ir.Operation) -> list[ir.Value] | None:
    """Turns a swap of the last two dimensions of the right operand into the flag."""
    source, permutation = untransposed(op.operands[1])
    rank = len(permutation)
    if permutation != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    copy = op.clone().operation
    copy.operands[1] = source
    copy.attributes["transpose_rhs"] = ir.BoolAttr.get(not ir.BoolAttr(op.attributes["transpose_rhs"]).value)
    return list(copy.results)


def push_pool(op: ir.Operation) -> list[ir.Value] | None:
    """Renames the spatial dimensions of a channels-last pool: windows are as good in another order of loops."""
    source, permutation = untransposed(op.operands[0])
    rank = len(permutation)
    if is_identity(permutation) or not ir.BoolAttr(op.attributes["channels_last"]).value:
        return None
    # Batch and channel first and last in the source: where that moves extents of one only, it is a view.
    outer = (permutation[0], permutation[-1])
    arranged = [outer[0], *(axis for axis in range(rank) if axis not in outer), outer[1]]
    if not moves_units_only(shape_of(source), arranged):
        return None
    source = build_transpose(source, arranged)
    permutation = [arranged.index(axis) for axis in permutation]
    if is_identity(permutation):
        return None
    copy = _with_source(op, source, stored_shape(shape_of(op.results[0]), permutation))
    spatial = [axis - 1 for axis in inverse(permutation)[1:-1]]
    for name in ("kernel", "strides", "dilation", "ceil_extra"):
        if name in op.attributes:
            values = list(ir.DenseI64ArrayAttr(op.attributes[name]))
            copy.attributes[name] = ir.DenseI64ArrayAttr.get([values[axis] for axis in spatial])
    padding = list(ir.DenseI64ArrayAttr(op.attributes["padding"]))
    copy.attributes["padding"] = ir.DenseI64ArrayAttr.get(
        [amount for axis in spatial for amount in padding[2 * axis : 2 * axis + 2]]
    )
    return [build_transpose(copy.results[0], permutation)]


def push_concat(op: ir.Operation) -> list[ir.Value] | None:
    """Renames the axis of ``tensor.concat``; inputs that do not carry the transpose must be constants."""
    pairs = [untransposed(operand) for operand in op.operands]
    permutations = {tuple(permutation) for _, permutation in pairs if not is_identity(permutation)}
    if len(permutations) != 1:
        return None
    permutation = list(permutations.pop())
    inputs: list[ir.Value] = []
    for operand, (source, own) in zip(op.operands, pairs, strict=True):
        if own == permutation:
            inputs.append(source)
        elif weight_symbol(operand) is not None or _is_fill(operand):
            inputs.append(build_transpose(operand, inverse(permutation)))
        else:
            return None
    result = ir.RankedTensorType(op.results[0].type)
    kind = ir.RankedTensorType.get(stored_shape(result.shape, permutation), result.element_type)
    axis = permutation[ir.IntegerAttr(op.attributes["dim"]).value]
    return [build_transpose(tensor.ConcatOp(kind, axis, inputs).result, permutation)]


def _is_fill(value: ir.Value) -> bool:
    op = defining_op(value)
    view = None if op is None else as_elementwise(op)
    return view is not None and not view.inputs


def push_pad(op: ir.Operation) -> list[ir.Value] | None:
    """Renames the dimensions of ``tensor.pad`` with static paddings and one padding value."""
    source, permutation = untransposed(op.operands[0])
    low = list(ir.DenseI64ArrayAttr(op.attributes["static_low"]))
    high = list(ir.DenseI64ArrayAttr(op.attributes["static_high"]))
    indices = op.regions[0].blocks[0].arguments
    if is_identity(permutation) or DYNAMIC in low + high or any(next(iter(index.uses), None) for index in indices):
        return None
    copy = _with_source(op, source, stored_shape(shape_of(op.results[0]), permutation))
    copy.attributes["static_low"] = ir.DenseI64ArrayAttr.get(stored_shape(low, permutation))
    copy.attributes["static_high"] = ir.DenseI64ArrayAttr.get(stored_shape(high, permutation))
    return [build_transpose(copy.results[0], permutation)]


def push_slice(op: ir.Operation) -> list[ir.Value] | None:
    """Renames the dimensions of a static ``tensor.extract_slice`` that keeps its rank."""
    source, permutation = untransposed(op.operands[0])
    shape = shape_of(op.results[0])
    if is_identity(permutation) or len(op.operands) != 1 or len(shape) != len(permutation):
        return None
    copy = _with_source(op, source, stored_shape(shape, permutation))
    for name in ("static_offsets", "static_sizes", "static_strides"):
        values = list(ir.DenseI64ArrayAttr(op.attributes[name]))
        copy.attributes[name] = ir.DenseI64ArrayAttr.get(stored_shape(values, permutation))
    return [build_transpose(copy.results[0], permutation)]
