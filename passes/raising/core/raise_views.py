"""Raises what gives the elements another shape to ``tensor.expand_shape``, ``collapse_shape`` and ``reshape``.

Of static shapes the dims that split and that join are known: the shape is collapsed to the finest that both sides
divide, and expanded. Of open ones every extent is stated in a ``tensor.reshape``, -1 as what the others leave over, and
``resolve-shapes`` makes views of it where dims split and join.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from lowerkit.dialect.linalg_builder import (
    DYNAMIC,
    Size,
    as_index,
    cast,
    collapse_dimensions,
    dynamic_values,
    expand_dimension,
    product,
    sizes_of,
    static_shape,
)
from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.numbers import sizes_from
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    TensorInfo,
    axes_of,
    from_builtin,
    int_of,
    tensor_info,
    to_builtin,
)


def grouped(value: ir.Value, groups: Sequence[Sequence[int]], sizes: Sequence[Size], *, joins: bool) -> ir.Value:
    """Joins dims of ``value`` (each group to one), or splits each dim into a group of ``sizes``."""
    i64 = ir.IntegerType.get_signless(64)
    lists = ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, axis) for axis in group]) for group in groups])
    kind = ir.RankedTensorType.get(static_shape(sizes), value.type.element_type)
    if joins:
        return tensor.CollapseShapeOp(kind, value, lists).result
    return tensor.ExpandShapeOp(kind, value, lists, dynamic_values(sizes), static_shape(sizes)).result


def with_ones(value: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Inserts dims of extent 1, which stand at ``axes`` of the result."""
    if not axes:
        return value
    rank = value.type.rank + len(axes)
    kept = [axis for axis in range(rank) if axis not in axes]
    sizes: list[Size] = [1] * rank
    for axis, size in zip(kept, sizes_of(value), strict=True):
        sizes[axis] = size
    return grouped(value, _groups(kept, rank), sizes, joins=False)


def without_ones(value: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Drops dims, whose extent is 1."""
    if not axes:
        return value
    shape = list(value.type.shape)
    value = cast(value, ir.RankedTensorType.get(_with_ones_at(shape, axes), value.type.element_type))
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    sizes: list[Size] = [shape[axis] for axis in kept]
    return grouped(value, _groups(kept, len(shape)), sizes, joins=True)


def _with_ones_at(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    return [1 if axis in axes else size for axis, size in enumerate(shape)]


def _groups(kept: Sequence[int], rank: int) -> list[list[int]]:
    """Groups of ``range(rank)`` with one of ``kept`` in each, the last of its group but for ones at the end."""
    if not kept:
        return []
    starts = [0, *(axis + 1 for axis in kept[:-1]), rank]
    return [list(range(start, end)) for start, end in pairwise(starts)]


def reshaped(value: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    """Returns the elements of ``value`` in another shape, of as many."""
    given, wanted = list(value.type.shape), static_shape(sizes)
    if DYNAMIC in given or DYNAMIC in wanted or math.prod(wanted) == 0:
        return _restated(value, sizes)
    if given == wanted:
        return value
    return _viewed(value, wanted)


def _restated(value: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    element = value.type.element_type
    if not sizes:  # a reshape to rank 0 states no size
        return without_ones(value, range(value.type.rank))
    if value.type.rank == 0:
        return with_ones(value, range(len(sizes)))
    extents = [as_index(size) for size in sizes]
    shape = tensor.FromElementsOp(ir.RankedTensorType.get([len(sizes)], ir.IndexType.get()), extents).result
    kind = ir.RankedTensorType.get(static_shape(sizes), element)
    return ir.Operation.create("tensor.reshape", results=[kind], operands=[value, shape]).results[0]


def _viewed(value: ir.Value, wanted: Sequence[int]) -> ir.Value:
    """A view of static shapes with elements: dims join to the finest common shape, and that splits."""
    joins, splits, common = _common(list(value.type.shape), list(wanted))
    if len(common) < value.type.rank:
        value = grouped(value, joins, list(common), joins=True)
    return grouped(value, splits, list(wanted), joins=False) if len(common) < len(wanted) else value


def _common(given: list[int], wanted: list[int]) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Returns the groups of dims of both shapes that hold the same elements, and the extent of each group."""
    joins, splits, common = list[list[int]](), list[list[int]](), list[int]()
    left = right = 0
    while left < len(given) and right < len(wanted):
        first, second = [left], [right]
        have, want = given[left], wanted[right]
        left, right = left + 1, right + 1
        while have != want:
            if have < want:
                have, first, left = have * given[left], [*first, left], left + 1
            else:
                want, second, right = want * wanted[right], [*second, right], right + 1
        joins.append(first)
        splits.append(second)
        common.append(have)
    if common:  # what is left over on one side are ones
        joins[-1] += range(left, len(given))
        splits[-1] += range(right, len(wanted))
    return joins, splits, common


def _view(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """view, reshape: (input, sizes): one size may be -1."""
    value, wanted = to_builtin(op.operands[0]), tensor_info(op.results[0])
    sizes = sizes_from(op.operands[1])
    if sizes.count(-1) > 1:
        raise RefusalError("more than one size is -1")
    if -1 in sizes:
        place = sizes.index(-1)
        known = wanted.shape[place]
        sizes[place] = _left_over(value, [*sizes[:place], *sizes[place + 1 :]]) if known is None else known
    # What the type of the result knows may be more than a size states: an export with open dims may fix a product.
    stated = [size if known is None else known for size, known in zip(sizes, wanted.shape, strict=True)]
    return _typed(reshaped(value, stated), wanted)


def _left_over(value: ir.Value, others: Sequence[Size]) -> Size:
    total, stated = product(sizes_of(value)), product(others)
    if stated == 1:
        return total
    if isinstance(total, int) and isinstance(stated, int):
        return total // stated if stated else 0
    return arith.DivUIOp(as_index(total), as_index(stated)).result


def _typed(value: ir.Value, info: TensorInfo) -> list[ir.Value]:
    return [from_builtin(value, info)]


def _view_as(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """view_as: (input, other)."""
    sizes = sizes_of(to_builtin(op.operands[1]))
    return _typed(reshaped(to_builtin(op.operands[0]), sizes), tensor_info(op.results[0]))


def _flatten(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """flatten.using_ints: (input, first, last)."""
    info, value = tensor_info(op.operands[0]), to_builtin(op.operands[0])
    first, last = (info.normalized_axis(int_of(operand)) for operand in op.operands[1:3])
    return _typed(joined(value, first, last + 1), tensor_info(op.results[0]))


def _collapse(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """prims.collapse: (input, start, end), the end among them."""
    first, last = int_of(op.operands[1]), int_of(op.operands[2])
    return _typed(joined(to_builtin(op.operands[0]), first, last + 1), tensor_info(op.results[0]))


def joined(value: ir.Value, start: int, end: int) -> ir.Value:
    """Joins the dims from ``start`` to before ``end`` into one; a tensor of rank 0 becomes a vector."""
    if value.type.rank == 0:
        return with_ones(value, [0])
    return collapse_dimensions(value, start, end - start) if end - start > 1 else value


def _unflatten(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """unflatten.int: (input, dim, sizes): one size may be -1."""
    info, wanted = tensor_info(op.operands[0]), tensor_info(op.results[0])
    axis = info.normalized_axis(int_of(op.operands[1]))
    return _typed(split(to_builtin(op.operands[0]), axis, sizes_from(op.operands[2])), wanted)


def _split_dim(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """prims.split_dim: (input, dim, outer length)."""
    value, axis = to_builtin(op.operands[0]), int_of(op.operands[1])
    return _typed(split(value, axis, [int_of(op.operands[2]), -1]), tensor_info(op.results[0]))


def split(value: ir.Value, axis: int, parts: Sequence[Size]) -> ir.Value:
    """Splits one dim into ``parts``, of which one may be -1."""
    sizes, parts = sizes_of(value), list(parts)
    if -1 in parts:
        place = parts.index(-1)
        others = product([*parts[:place], *parts[place + 1 :]])
        if isinstance(sizes[axis], int) and isinstance(others, int):
            parts[place] = sizes[axis] // others if others else 0
        else:
            parts[place] = arith.DivUIOp(as_index(sizes[axis]), as_index(others)).result
    if all(isinstance(part, int) and part for part in (sizes[axis], *parts)):
        return expand_dimension(value, axis, parts) if len(parts) > 1 else value
    return reshaped(value, [*sizes[:axis], *parts, *sizes[axis + 1 :]])


def _unsqueeze(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """unsqueeze: (input, dim)."""
    wanted = tensor_info(op.results[0])
    return _typed(with_ones(to_builtin(op.operands[0]), [int_of(op.operands[1]) % wanted.rank]), wanted)


def _squeeze(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """squeeze: (input[, dims]): those dims go whose extent is 1; of an open one the rank of the result says it."""
    info, wanted = tensor_info(op.operands[0]), tensor_info(op.results[0])
    named = axes_of(op.operands[1], info) if len(op.operands) > 1 else list(range(info.rank))
    ones = [axis for axis in named if info.shape[axis] == 1]
    open_ones = [axis for axis in named if info.shape[axis] is None]
    gone = info.rank - wanted.rank
    if gone not in (len(ones), len(ones) + len(open_ones)):
        raise RefusalError(f"which dims of {info} have the extent 1")
    return _typed(
        without_ones(to_builtin(op.operands[0]), sorted(ones + (open_ones if gone > len(ones) else []))), wanted
    )


def _at_least(rank: int) -> Rule:
    """atleast_1d, atleast_2d and atleast_3d: (input)."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        return _typed(of_rank(to_builtin(op.operands[0]), rank), tensor_info(op.results[0]))

    return rule


def of_rank(value: ir.Value, rank: int) -> ir.Value:
    """Returns a tensor of rank ``rank`` at least, as ``atleast_1d`` to ``atleast_3d`` do."""
    ones = {(0, 1): [0], (0, 2): [0, 1], (1, 2): [0], (0, 3): [0, 1, 2], (1, 3): [0, 2], (2, 3): [2]}
    return with_ones(value, ones.get((value.type.rank, rank), []))


@dataclass(frozen=True)
class RaiseViews(TablePass):
    """Raises views. Precondition: ``raise-numbers`` has run, or a computed size goes through a cast."""

    name: ClassVar[str] = "raise-views"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.{name}": _view for name in ("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy")},
        "torch.aten.view_as": _view_as,
        "torch.aten.reshape_as": _view_as,
        "torch.aten.flatten.using_ints": _flatten,
        "torch.prims.collapse": _collapse,
        "torch.aten.unflatten.int": _unflatten,
        "torch.prims.split_dim": _split_dim,
        "torch.aten.unsqueeze": _unsqueeze,
        **{f"torch.aten.squeeze{form}": _squeeze for form in ("", ".dim", ".dims")},
        "torch.prims.squeeze": _squeeze,
        **{f"torch.aten.atleast_{rank}d": _at_least(rank) for rank in (1, 2, 3)},
    }
