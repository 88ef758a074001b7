"""Raises look-ups by index along one axis to ``lk.gather``: embedding, index_select, and indexing with one tensor.

``gather`` has an index for each element, and becomes a loop over the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import GatherOp
from lowerkit.dialect.lowering.gather import gather_elements
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.raise_ops.multi_index import INTEGERS, indexed_dims, positions
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import slice_axis, squeeze, unsqueeze, view
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    TensorInfo,
    defining_op,
    from_builtin,
    int_of,
    is_none,
    like_result,
    list_items,
    tensor_info,
    to_builtin,
    try_int,
)


def _gather(data: ir.Value, indices: ir.Value, axis: int) -> ir.Value:
    table, wanted = tensor_info(data), tensor_info(indices)
    run = _consecutive(indices, table, axis)
    if run is not None:
        return slice_axis(data, axis, run, run + wanted.static_dim(0))
    indices = _unwrapped(indices, table.shape[axis])
    if wanted.dtype not in INTEGERS:
        raise RefusalError(f"indices of {wanted}: the size of the result would depend on the data")
    shape = (*table.shape[:axis], *wanted.shape, *table.shape[axis + 1 :])
    result = GatherOp.build(to_builtin(data), to_builtin(indices), axis=axis)
    return from_builtin(result, TensorInfo(shape, table.dtype))


def _consecutive(indices: ir.Value, table: TensorInfo, axis: int) -> int | None:
    """Returns the first of constant positions that follow one another: such a look-up is a slice."""
    literal = defining_op(indices, "torch.vtensor.literal")
    size = table.shape[axis]
    if literal is None or size is None or tensor_info(indices).rank != 1:
        return None
    attribute = literal.attributes["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    positions = [index + size if index < 0 else index for index in attribute]
    start = positions[0] if positions else -1
    return (
        start
        if positions == list(range(start, start + len(positions))) and 0 <= start <= positions[-1] < size
        else None
    )


def _unwrapped(indices: ir.Value, size: int | None) -> ir.Value:
    """Returns x of ``where(x < 0, x + size, x)``: lk.gather counts negative positions from the end itself."""
    selection = defining_op(indices, "torch.aten.where.self")
    if selection is None or size is None:
        return indices
    condition, wrapped, plain = selection.operands
    test = defining_op(condition, "torch.aten.lt.Scalar")
    addition = defining_op(wrapped, "torch.aten.add.Scalar")
    if test is None or addition is None or not test.operands[0] == addition.operands[0] == plain:
        return indices
    matches = (try_int(test.operands[1]), try_int(addition.operands[1]), try_int(addition.operands[2])) == (0, size, 1)
    return plain if matches else indices


def _raise_embedding(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """embedding: (weight, indices, padding_idx, scale_grad_by_freq, sparse); the last three matter for gradients."""
    return like_result(_gather(op.operands[0], op.operands[1], 0), op)


def _raise_index_select(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """index_select: (input, dim, index)."""
    value, dim, indices = op.operands
    if tensor_info(indices).rank == 0:
        indices = unsqueeze(indices, 0)
    if tensor_info(value).rank == 0:  # the index can be 0 only
        return like_result(value, op)
    return like_result(_gather(value, indices, tensor_info(value).normalized_axis(int_of(dim))), op)


def _raise_gather(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """gather: (input, dim, index, sparse_grad): an index for each element; a tensor of rank 0 is one of one element."""
    value, dim, indices = op.operands[0], op.operands[1], op.operands[2]
    table, wanted = tensor_info(value), tensor_info(indices)
    axis = table.normalized_axis(int_of(dim))
    value = value if table.rank else unsqueeze(value, 0)
    indices = indices if wanted.rank else unsqueeze(indices, 0)
    found = gather_elements(to_builtin(value), to_builtin(indices), axis)
    found = from_builtin(found, TensorInfo(tensor_info(indices).shape, table.dtype))
    return like_result(found if wanted.rank else squeeze(found, 0), op)


def _raise_index(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """index.Tensor: (input, list of a tensor or None for each leading dim)."""
    items = list_items(op.operands[1])
    if all(is_none(item) for item in items):  # indexing by None: dims of size 1
        return [view(op.operands[0], tensor_info(op.results[0]).static_shape())]
    dims = indexed_dims(op.operands[0], items)
    return like_result(_gather(dims.merged(op.operands[0]), positions(dims, clamped=True), dims.axis), op)


@dataclass(frozen=True)
class RaiseGather(TablePass):
    """Raises look-ups along one axis to ``lk.gather``. Precondition: none."""

    name: ClassVar[str] = "raise-gather"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.embedding": _raise_embedding,
        "torch.aten.gather": _raise_gather,
        "torch.aten.index_select": _raise_index_select,
        "torch.aten.index.Tensor": _raise_index,
        "torch.aten._unsafe_index.Tensor": _raise_index,
        "torch.aten.index.Tensor_hacked_twin": _raise_index,
    }
