"""Raises what joins tensors, and casts each to the element type of the whole first: cat, stack and their kind.

PyTorch promotes the parts to one type; what is cast afterwards would have been read with the sign of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect.linalg_builder import DYNAMIC
from lowerkit.dialect.linalg_builder import cast as with_shape
from lowerkit.mlir import ir, tensor
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.raise_views import of_rank, with_ones
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import cast
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    from_builtin,
    int_of,
    list_items,
    tensor_info,
    to_builtin,
)


def concatenated(parts: Sequence[ir.Value], axis: int) -> ir.Value:
    """Joins builtin tensors of one element type along ``axis``; their other extents agree, by guards if open."""
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].type.shape)
    for part in parts[1:]:  # what one of them knows of an extent, all have
        shape = [other if size == DYNAMIC else size for size, other in zip(shape, part.type.shape, strict=True)]
    alike: list[ir.Value] = []
    for part in parts:
        known = [*shape[:axis], part.type.shape[axis], *shape[axis + 1 :]]
        alike.append(with_shape(part, ir.RankedTensorType.get(known, part.type.element_type)))
    along = [part.type.shape[axis] for part in parts]
    shape[axis] = DYNAMIC if DYNAMIC in along else sum(along)
    kind = ir.RankedTensorType.get(shape, parts[0].type.element_type)
    return tensor.ConcatOp(kind, axis, alike).result


def _parts(op: ir.Operation) -> list[ir.Value]:
    """Returns the parts as builtin tensors of the element type of the result."""
    dtype = tensor_info(op.results[0]).dtype
    return [to_builtin(cast(item, dtype)) for item in list_items(op.operands[0])]


def _cat(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """cat: (tensors, dim): a vector without elements fits beside any other tensor."""
    info = tensor_info(op.results[0])
    axis = info.normalized_axis(int_of(op.operands[1]))
    parts = [part for part in _parts(op) if part.type.rank == info.rank or list(part.type.shape) != [0]]
    if any(part.type.rank != info.rank for part in parts):
        raise RefusalError("parts of unlike ranks")
    return [from_builtin(concatenated(parts, axis), info)]


def _stack(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """stack: (tensors, dim): along a new dim."""
    info = tensor_info(op.results[0])
    axis = info.normalized_axis(int_of(op.operands[1]))
    return [from_builtin(concatenated([with_ones(part, [axis]) for part in _parts(op)], axis), info)]


def _joined(prepare: Callable[[ir.Value], ir.Value], axis_of: Callable[[int], int]) -> Rule:
    """A rule for (tensors): each is brought to a rank, and they are joined along the axis that goes with the rank."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        info = tensor_info(op.results[0])
        parts = [prepare(part) for part in _parts(op)]
        return [from_builtin(concatenated(parts, axis_of(info.rank)), info)]

    return rule


def _as_column(value: ir.Value) -> ir.Value:
    return with_ones(value, {0: [0, 1], 1: [1]}.get(value.type.rank, []))


@dataclass(frozen=True)
class RaiseJoins(TablePass):
    """Raises joins of tensors. Precondition: none; their lists are spelled out."""

    name: ClassVar[str] = "raise-joins"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.{name}": _cat for name in ("cat", "concat", "concatenate")},
        "torch.aten.stack": _stack,
        "torch.aten.hstack": _joined(lambda part: of_rank(part, 1), lambda rank: min(rank - 1, 1)),
        "torch.aten.vstack": _joined(lambda part: of_rank(part, 2), lambda rank: 0),
        "torch.aten.row_stack": _joined(lambda part: of_rank(part, 2), lambda rank: 0),
        "torch.aten.dstack": _joined(lambda part: of_rank(part, 3), lambda rank: 2),
        "torch.aten.column_stack": _joined(_as_column, lambda rank: 1),
    }
