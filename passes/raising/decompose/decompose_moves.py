"""Spells out ops that only move elements: padding by elements of the tensor, flip, roll, stack.

Positions are known at compile time, so each is slices and a concatenation, or one ``lk.gather`` with a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.dialect import GatherOp
from lowerkit.dialect.linalg_builder import DYNAMIC, Size, dynamic_values, sizes_of, static_shape
from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import (
    cast,
    concatenate,
    expand,
    product,
    size,
    slice_axis,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    NotConcernedError,
    RefusalError,
    build,
    constant_bool,
    constant_float,
    constant_int,
    from_builtin,
    int_list,
    int_of,
    ints_of,
    is_none,
    like_result,
    list_items,
    string_of,
    tensor_info,
    to_builtin,
    try_int,
)
from lowerkit.passes.rewriting import constant_index


def _pad(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """pad: (input, pad, mode, value): amounts are low, high of the last dim, then of the one before, and so on."""
    mode = string_of(op.operands[2])
    if mode == "constant":
        fill = constant_float(0.0) if is_none(op.operands[3]) else op.operands[3]
        return _filled(op, op.operands[0], op.operands[1], fill)
    return like_result(_padded(op.operands[0], ints_of(op.operands[1]), mode), op)


def _constant_pad(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """constant_pad_nd: (input, pad, value); amounts of no less than 0 are left to the conversion."""
    value, amounts, fill = op.operands
    if all((amount := try_int(item)) is None or amount >= 0 for item in list_items(amounts)):
        raise NotConcernedError
    return _filled(op, value, amounts, fill)


def _filled(op: ir.Operation, value: ir.Value, amounts: ir.Value, fill: ir.Value) -> Sequence[ir.Value]:
    """Pads with a number. ``tensor.pad`` knows no negative amounts: those cut elements off first."""
    numbers = [try_int(item) for item in list_items(amounts)]
    if all(number is None or number >= 0 for number in numbers):
        return build("torch.aten.constant_pad_nd", [value, amounts, fill], [op.results[0].type])
    rest: list[int] = []
    pairs = ints_of(amounts)
    for position, (low, high) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        axis = tensor_info(value).rank - 1 - position
        if low < 0 or high < 0:
            size = tensor_info(value).static_dim(axis)
            value = slice_axis(value, axis, max(-low, 0), size - max(-high, 0))
        rest += [max(low, 0), max(high, 0)]
    if not any(rest):
        return like_result(value, op)
    return build("torch.aten.constant_pad_nd", [value, int_list(rest), fill], [op.results[0].type])


def _reflection_pad(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """reflection_pad1d to 3d: (input, pad)."""
    return like_result(_padded(op.operands[0], ints_of(op.operands[1]), "reflect"), op)


def _replication_pad(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """replication_pad1d to 3d: (input, pad)."""
    return like_result(_padded(op.operands[0], ints_of(op.operands[1]), "replicate"), op)


def _padded(value: ir.Value, amounts: Sequence[int], mode: str) -> ir.Value:
    """Pads with elements of the tensor itself: one look-up by constant positions for each padded dim."""
    for position in range(len(amounts) // 2):
        info = tensor_info(value)
        axis = info.rank - 1 - position
        low, high = amounts[2 * position : 2 * position + 2]
        size = info.static_dim(axis)
        if mode == "circular" and min(low, high) < 0:
            # What is cut off is gone before the rest is repeated; reflections see it.
            value = slice_axis(value, axis, max(-low, 0), size - max(-high, 0))
            low, high, size = max(low, 0), max(high, 0), tensor_info(value).static_dim(axis)
        limit = {"reflect": size - 1, "circular": size}.get(mode, max(low, high))
        if max(low, high) > limit or size + low + high < 1:
            raise RefusalError(f"{mode} padding of {low} and {high} around {size} elements")
        if low or high:
            value = take(value, axis, [_source(index, size, mode) for index in range(-low, size + high)])
    return value


def _source(index: int, size: int, mode: str) -> int:
    """Returns which element stands at ``index``, counted from the first element, below 0 in the low padding."""
    if mode == "replicate":
        return min(max(index, 0), size - 1)
    if mode == "circular":
        return index % size
    if mode != "reflect":
        raise RefusalError(f"padding mode {mode!r}")
    return abs(index) if index < size else 2 * (size - 1) - index


def take(value: ir.Value, axis: int, positions: Sequence[int]) -> ir.Value:
    """Takes the elements at constant positions along one axis: ``lk.gather`` with a constant."""
    info = tensor_info(value)
    numbers = ir.DenseElementsAttr.get(np.asarray(positions, dtype=np.int64))
    indices = build_constant(numbers)
    shape = [*info.shape[:axis], len(positions), *info.shape[axis + 1 :]]
    return from_builtin(GatherOp.build(to_builtin(value), indices, axis=axis), info.with_shape(shape))


def build_constant(numbers: ir.DenseElementsAttr) -> ir.Value:
    """Builds ``arith.constant`` of a builtin tensor."""
    return ir.Operation.create("arith.constant", results=[numbers.type], attributes={"value": numbers}).results[0]


def _flip(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """flip: (input, dims); PyTorch lets a tensor of rank 0 be flipped along a dim that it has not."""
    value = op.operands[0]
    info = tensor_info(value)
    for axis in sorted({info.normalized_axis(axis) for axis in ints_of(op.operands[1])}) if info.rank else []:
        value = take(value, axis, list(reversed(range(info.static_dim(axis)))))
    return like_result(value, op)


def _roll(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """roll: (input, shifts, dims): two slices change places; without dims the tensor is rolled as a vector."""
    value, shifts, axes = op.operands[0], ints_of(op.operands[1]), ints_of(op.operands[2])
    if 0 in tensor_info(value).shape:
        return like_result(value, op)
    sizes = [size(value, axis) for axis in range(tensor_info(value).rank)]
    flat = not axes
    if flat:
        value, axes = view(value, [product(sizes)]), [0]
    for shift, dim in zip(shifts, axes, strict=True):
        value = _rolled(value, shift, tensor_info(value).normalized_axis(dim))
    return like_result(view(value, sizes) if flat else value, op)


def _rolled(value: ir.Value, shift: int, axis: int) -> ir.Value:
    """Moves every element by ``shift`` places along ``axis``, around the end; an extent of 0 is allowed."""
    extent = size(value, axis)
    if isinstance(extent, int):
        cut = (extent - shift) % extent if extent else 0
        if not cut:
            return value
        return concatenate([slice_axis(value, axis, cut, extent), slice_axis(value, axis, 0, cut)], axis)
    return from_builtin(_rolled_openly(to_builtin(value), shift, axis), tensor_info(value))


def _rolled_openly(value: ir.Value, shift: int, axis: int) -> ir.Value:
    """As :func:`_rolled`, of a builtin tensor whose extent is known at run time and may be less than the shift."""
    sizes = sizes_of(value)
    extent = tensor.DimOp(value, constant_index(axis)).result
    turned = arith.RemUIOp(constant_index(abs(shift)), arith.MaxUIOp(extent, constant_index(1)).result).result
    rest = arith.SubIOp(extent, turned).result
    first = rest if shift > 0 else turned  # how many elements go behind the others
    parts = [
        _part(value, sizes, axis, first, turned if shift > 0 else rest),
        _part(value, sizes, axis, constant_index(0), first),
    ]
    return tensor.ConcatOp(value.type, axis, parts).result


def _part(value: ir.Value, sizes: Sequence[Size], axis: int, start: ir.Value, count: ir.Value) -> ir.Value:
    """Takes ``count`` positions from ``start`` on along ``axis`` of a tensor of ``sizes``."""
    taken = [*sizes[:axis], count, *sizes[axis + 1 :]]
    offsets = [DYNAMIC if dim == axis else 0 for dim in range(len(taken))]
    steps = [1] * len(taken)
    values = dynamic_values(taken)
    return tensor.ExtractSliceOp(value.type, value, [start], values, [], offsets, static_shape(taken), steps).result


def _take_along_dim(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """take_along_dim: (input, indices, dim): gather, where the shapes need no broadcasting."""
    value, indices, dim = op.operands
    if is_none(dim) or tensor_info(value).rank != tensor_info(indices).rank:
        raise RefusalError("indices into the flattened tensor, or of another rank")
    axis = tensor_info(value).normalized_axis(int_of(dim))
    for other in range(tensor_info(value).rank):
        if other != axis and tensor_info(value).shape[other] != tensor_info(indices).shape[other]:
            raise RefusalError("indices that broadcast")
    return build("torch.aten.gather", [value, constant_int(axis), indices, constant_bool(False)], [op.results[0].type])


def _stack(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """stack: (tensors, dim): cat of unsqueezed tensors."""
    items = list_items(op.operands[0])
    axis = int_of(op.operands[1]) % (tensor_info(items[0]).rank + 1)
    return like_result(concatenate([unsqueeze(item, axis) for item in items], axis), op)


def _fill(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """fill.Tensor: (input, number): a tensor of rank 0, everywhere."""
    info = tensor_info(op.results[0])
    return like_result(expand(cast(op.operands[1], info.dtype), info.static_shape()), op)


@dataclass(frozen=True)
class DecomposeMoves(TablePass):
    """Spells out moves of elements. Precondition: none."""

    name: ClassVar[str] = "decompose-moves"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.pad": _pad,
        "torch.aten.constant_pad_nd": _constant_pad,
        **{f"torch.aten.reflection_pad{count}d": _reflection_pad for count in (1, 2, 3)},
        **{f"torch.aten.replication_pad{count}d": _replication_pad for count in (1, 2, 3)},
        "torch.aten.flip": _flip,
        "torch.aten.roll": _roll,
        "torch.aten.take_along_dim": _take_along_dim,
        "torch.aten.stack": _stack,
        "torch.aten.fill.Tensor": _fill,
    }
