"""Raises parts along one axis, and what is written over them: slice, select, narrow, their scatters, unfold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect.linalg_builder import Size, loop, map_elements, size_of, sizes_of
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.numbers import size_from
from lowerkit.passes.raising.core.raise_views import with_ones, without_ones
from lowerkit.passes.raising.core.slices import (
    add,
    count_of,
    from_the_front,
    maximum,
    minimum,
    part,
    subtract,
    with_part,
    within,
)
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import cast
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    from_builtin,
    int_of,
    is_none,
    is_tensor,
    tensor_info,
    to_builtin,
)


@dataclass(frozen=True)
class _Slice:
    """``start:end:step`` along ``axis``, brought into the tensor: the first position, how many, and how far apart."""

    axis: int
    start: Size
    count: Size
    step: int


def _slice_of(value: ir.Value, dim: ir.Value, bounds: Sequence[ir.Value], known: int | None) -> _Slice:
    """Reads dim, start, end and step; ``known`` is how many positions the type of the result says there are."""
    axis, step = tensor_info(value).normalized_axis(int_of(dim)), int_of(bounds[2])
    if step < 1:
        raise RefusalError(f"a step of {step}")
    extent = size_of(to_builtin(value), axis)
    first = 0 if is_none(bounds[0]) else size_from(bounds[0])
    if known is not None and isinstance(first, int):
        # That so many positions are there says that the start is in range, if it counts from the front.
        return _Slice(axis, first if first >= 0 and known else within(first, extent), known, step)
    start = within(first, extent)
    end = extent if is_none(bounds[1]) else within(size_from(bounds[1]), extent)
    return _Slice(axis, start, count_of(start, end, step) if known is None else known, step)


def _slice(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """slice.Tensor: (input, dim, start, end, step)."""
    value, dim, *bounds = op.operands
    wanted = tensor_info(op.results[0])
    found = _slice_of(value, dim, bounds, wanted.shape[tensor_info(value).normalized_axis(int_of(dim))])
    piece = part(to_builtin(value), found.axis, found.start, found.count, found.step)
    return [from_builtin(piece, wanted)]


def _slice_scatter(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """slice_scatter: (input, source, dim, start, end, step)."""
    value, source, dim, *bounds = op.operands
    axis = tensor_info(value).normalized_axis(int_of(dim))
    found = _slice_of(value, dim, bounds, tensor_info(source).shape[axis])
    piece = to_builtin(cast(source, tensor_info(value).dtype))
    whole = with_part(to_builtin(value), piece, axis, found.start, found.step)
    return [from_builtin(whole, tensor_info(op.results[0]))]


def _position(value: ir.Value, axis: int, index: ir.Value) -> Size:
    """Where a select reads; a position that is computed is clamped, so that it never reads outside of the tensor."""
    extent, place = size_of(value, axis), size_from(index)
    found = from_the_front(place, extent)
    if isinstance(place, int):
        return found
    return maximum(minimum(found, subtract(extent, 1)), 0)


def _select(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """select.int: (input, dim, index)."""
    value, axis = to_builtin(op.operands[0]), tensor_info(op.operands[0]).normalized_axis(int_of(op.operands[1]))
    piece = part(value, axis, _position(value, axis, op.operands[2]), 1)
    return [from_builtin(without_ones(piece, [axis]), tensor_info(op.results[0]))]


def _select_scatter(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """select_scatter: (input, source, dim, index)."""
    info, value = tensor_info(op.operands[0]), to_builtin(op.operands[0])
    axis = info.normalized_axis(int_of(op.operands[2]))
    piece = with_ones(to_builtin(cast(op.operands[1], info.dtype)), [axis])
    whole = with_part(value, piece, axis, _position(value, axis, op.operands[3]))
    return [from_builtin(whole, tensor_info(op.results[0]))]


def _narrow(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """narrow: (input, dim, start, length): a start below 0 counts from the end."""
    value, axis = to_builtin(op.operands[0]), tensor_info(op.operands[0]).normalized_axis(int_of(op.operands[1]))
    if is_tensor(op.operands[2]):
        raise RefusalError("a start that is a tensor")
    extent, length = size_of(value, axis), size_from(op.operands[3])
    start = within(size_from(op.operands[2]), extent)
    if not isinstance(start, int) or not isinstance(length, int) or not isinstance(extent, int):
        length = maximum(minimum(length, subtract(extent, start)), 0)
    return [from_builtin(part(value, axis, start, length), tensor_info(op.results[0]))]


def _unfold(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """unfold: (input, dim, size, step): windows along one dim, their elements in a dim of their own at the end."""
    value, info = to_builtin(op.operands[0]), tensor_info(op.operands[0])
    size, step = int_of(op.operands[2]), int_of(op.operands[3])
    if not info.rank:
        return [from_builtin(with_ones(value, [0]), tensor_info(op.results[0]))]
    axis = info.normalized_axis(int_of(op.operands[1]))
    sizes = sizes_of(value)
    starts = add(subtract(sizes[axis], size), 1)
    counts = [*sizes[:axis], count_of(0, starts, step), *sizes[axis + 1 :], size]
    places = [loop(dim) * step + loop(info.rank) if dim == axis else loop(dim) for dim in range(info.rank)]
    windows = map_elements([(value, places)], counts, value.type.element_type, lambda element: element)
    return [from_builtin(windows, tensor_info(op.results[0]))]


@dataclass(frozen=True)
class RaiseSlices(TablePass):
    """Raises parts along an axis. Precondition: none; steps are constants of no less than 1."""

    name: ClassVar[str] = "raise-slices"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.slice.Tensor": _slice,
        "torch.aten.slice_scatter": _slice_scatter,
        "torch.aten.select.int": _select,
        "torch.aten.select_scatter": _select_scatter,
        "torch.aten.narrow": _narrow,
        "torch.aten.unfold": _unfold,
    }
