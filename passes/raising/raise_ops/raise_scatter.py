"""Raises writes by index to ``lk.scatter``: index_put, scatter and its reductions.

``scatter`` gives every element an index of its own: the tensor is written as a vector, at positions that are computed
from the index and the element's other coordinates; unless the index is the same for whole slices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from lowerkit.dialect import ScatterOp
from lowerkit.dialect import linalg_builder as builder
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.raise_ops.multi_index import indexed_dims, positions, row_major
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    cast,
    expand,
    from_ordered,
    full,
    ordered,
    product,
    signed,
    sizes_of,
    slice_axis,
    slice_open,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    TensorInfo,
    bool_of,
    build,
    constant_string,
    defining_op,
    from_builtin,
    int_of,
    is_none,
    like_result,
    list_items,
    number_of,
    string_of,
    tensor_info,
    to_builtin,
)

Extent: TypeAlias = int | ir.Value

_KINDS = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}


def _scatter(data: ir.Value, indices: ir.Value, updates: ir.Value, axis: int, kind: str) -> ir.Value:
    info = tensor_info(data)
    if (info.dtype == "i1" or info.dtype.startswith("u")) and kind != "set":
        if info.dtype == "i1":  # a sum of bools is whether there is one, a product whether all are
            kind = {"add": "max", "mul": "min"}.get(kind, kind)
        to, back = (ordered, from_ordered) if kind in ("max", "min") else (signed, cast)
        return back(_scatter(to(data), indices, to(updates), axis, kind), info.dtype)
    result = ScatterOp.build(to_builtin(data), to_builtin(indices), to_builtin(updates), axis=axis, kind=kind)
    return from_builtin(result, info)


def _broadcast(value: ir.Value, sizes: Sequence[int | ir.Value]) -> ir.Value:
    """Broadcasts to ``sizes``; nothing where they are the same."""
    shape = tuple(size if isinstance(size, int) else None for size in sizes)
    return value if tensor_info(value).shape == shape else expand(value, sizes)


# index_put.


def _raise_index_put(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """index_put: (input, index list, values, accumulate)."""
    value, listed, updates, accumulate = list(op.operands)[:4]
    items = list_items(listed)
    used = [item for item in items if not is_none(item)]
    updates = cast(updates, tensor_info(value).dtype)
    if len(used) == 1 and tensor_info(used[0]).dtype == "i1":
        return like_result(_put_by_mask(value, used[0], len(items) - 1, updates, bool_of(accumulate)), op)
    dims = indexed_dims(value, items)
    merged = dims.merged(value)
    sizes = sizes_of(merged)
    places = sizes_of(dims.indices[0])
    updates = _broadcast(updates, [*sizes[: dims.axis], *places, *sizes[dims.axis + 1 :]])
    kind = "add" if bool_of(accumulate) else "set"
    return like_result(dims.split(_scatter(merged, positions(dims, clamped=False), updates, dims.axis, kind)), op)


def _put_by_mask(value: ir.Value, mask: ir.Value, axis: int, updates: ir.Value, accumulate: bool) -> ir.Value:
    """A mask over the dims from ``axis`` on: one update goes wherever it holds."""
    info, count = tensor_info(value), tensor_info(mask).rank
    given = tensor_info(updates)
    rest = info.rank - axis - count
    if given.rank == axis + 1 + rest and given.shape[axis] != 1:
        raise RefusalError("a value for each place of a mask that is not over the leading dims, or of none")
    if given.rank > rest:
        # A dim of size 1 stands for the places; the mask has more dims than that.
        leading = sizes_of(updates)
        cut = given.rank - rest - 1
        updates = view(updates, [*leading[:cut], *[1] * count, *leading[cut + 1 :]])
    for _ in range(rest):
        mask = unsqueeze(mask, tensor_info(mask).rank)
    sizes = sizes_of(value)
    mask, updates = _broadcast(mask, sizes), _broadcast(updates, sizes)
    written = binary("add", value, updates) if accumulate else updates
    return build("torch.aten.where.self", [mask, written, value], [info.torch_type()])[0]


# scatter.


@dataclass(frozen=True)
class _Plan:
    """A scatter as ``lk.scatter``: what is written where."""

    data: ir.Value
    indices: ir.Value
    axis: int

    def write(self, data: ir.Value, updates: ir.Value, kind: str) -> ir.Value:
        return _scatter(data, self.indices, updates, self.axis, kind)


def _plan(value: ir.Value, dim: int, index: ir.Value) -> tuple[_Plan, list[int | ir.Value]]:
    """Returns how to write, and the shape in which the updates are handed over."""
    if tensor_info(value).rank == 0:
        value, dim = view(value, [1]), 0
    if tensor_info(index).rank == 0:
        index = view(index, [1])
    info, wanted = tensor_info(value), tensor_info(index)
    axis = info.normalized_axis(dim)
    sizes = sizes_of(index)
    whole = _same_for_slices(index, axis)
    others = [extents for d, extents in enumerate(zip(info.shape, wanted.shape, strict=True)) if d != axis]
    if whole is not None and all(have == want and want is not None for have, want in others):
        return _Plan(value, view(whole, [sizes[axis]]), axis), sizes
    coordinates = [to_builtin(index) if d == axis else None for d in range(info.rank)]
    extents = builder.sizes_of(to_builtin(value))
    linear = row_major(coordinates, extents, builder.sizes_of(to_builtin(index)), clamped=False)
    linear = from_builtin(linear, wanted.with_dtype("si64"))
    return _Plan(view(value, [product(sizes_of(value))]), view(linear, [product(sizes)]), 0), [product(sizes)]


def _same_for_slices(index: ir.Value, axis: int) -> ir.Value | None:
    """Returns what was broadcast to ``index`` if it varies along ``axis`` only."""
    source = defining_op(index, "torch.aten.expand", "torch.aten.broadcast_to")
    if source is None:
        return None
    info = tensor_info(source.operands[0])
    if info.rank != tensor_info(index).rank:
        return None
    return source.operands[0] if all(size == 1 for d, size in enumerate(info.shape) if d != axis) else None


def _updates(source: ir.Value, index: ir.Value, dtype: str) -> ir.Value:
    """Returns the part of ``source`` that has an index."""
    if tensor_info(source).rank == 0:
        source = view(source, [1])
    for axis, extent in enumerate(sizes_of(index)):
        if not isinstance(extent, int):
            source = slice_open(source, axis, 0, extent)
        elif tensor_info(source).shape[axis] != extent:
            source = slice_axis(source, axis, 0, extent)
    return cast(source, dtype)


def _scattered(
    op: ir.Operation, source: ir.Value | float, kind: str, *, include_self: bool = True, mean: bool = False
) -> Sequence[ir.Value]:
    value, index = op.operands[0], op.operands[2]
    info = tensor_info(value)
    if 0 in tensor_info(index).shape:
        return like_result(value, op)
    plan, shape = _plan(value, int_of(op.operands[1]), index)

    def everywhere(number: float | int) -> ir.Value:
        return full(number, shape, info.dtype)

    number = isinstance(source, (int, float))
    updates = everywhere(source) if number else view(_updates(source, index, info.dtype), shape)
    data = plan.data
    if not include_self:
        data = plan.write(data, everywhere(_neutral(kind, info)), "set")
    result = plan.write(data, updates, kind)
    if mean:
        ones = full(1, sizes_of(data), info.dtype)
        counts = ones if include_self else plan.write(ones, everywhere(0), "set")
        counts = plan.write(counts, everywhere(1), "add")
        if info.is_float:
            result = binary("div", result, counts)
        else:
            mode = constant_string("floor")
            result = build("torch.aten.div.Tensor_mode", [result, counts, mode], [result.type])[0]
    return like_result(view(result, sizes_of(value)), op)


def _neutral(kind: str, info: TensorInfo) -> float | int:
    if kind not in ("max", "min"):
        return 1 if kind == "mul" else 0
    if info.is_float:
        return -math.inf if kind == "max" else math.inf
    sign, bits = re.fullmatch(r"([su]?)i(\d+)", info.dtype).groups()  # type: ignore[union-attr]
    half = 1 << (int(bits) - 1)
    least = -half if sign == "s" else 0
    return least if kind == "max" else least + 2 * half - 1


def _raise_scatter(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """scatter.src, scatter_add: (input, dim, index, source)."""
    kind = "add" if "scatter_add" in op.name else "set"
    return _scattered(op, op.operands[3], kind)


def _raise_scatter_value(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """scatter.value: (input, dim, index, number)."""
    return _scattered(op, number_of(op.operands[3]), "set")


def _raise_scatter_reduce(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """scatter.reduce: (input, dim, index, source, reduce); scatter_reduce.two has include_self after it."""
    word = string_of(op.operands[4])
    if word not in _KINDS:
        raise RefusalError(f"reduction {word!r}")
    include = bool_of(op.operands[5]) if len(op.operands) > 5 else True
    return _scattered(op, op.operands[3], _KINDS[word], include_self=include, mean=word == "mean")


def _raise_scatter_value_reduce(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """scatter.value_reduce: (input, dim, index, number, reduce)."""
    return _scattered(op, number_of(op.operands[3]), _KINDS[string_of(op.operands[4])])


@dataclass(frozen=True)
class RaiseScatter(TablePass):
    """Raises writes by index to ``lk.scatter``. Precondition: none."""

    name: ClassVar[str] = "raise-scatter"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.{name}": _raise_index_put for name in ("index_put", "index_put.hacked_twin")},
        "torch.aten._index_put_impl": _raise_index_put,
        "torch.aten.scatter.src": _raise_scatter,
        "torch.aten.scatter_add": _raise_scatter,
        "torch.aten.scatter.value": _raise_scatter_value,
        "torch.aten.scatter.reduce": _raise_scatter_reduce,
        "torch.aten.scatter_reduce.two": _raise_scatter_reduce,
        "torch.aten.scatter.value_reduce": _raise_scatter_value_reduce,
    }
