"""Raises what changes the order of dims, or of the elements along them: permute and its kind, flip, roll, shuffles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.dialect import GatherOp
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.linalg_builder import (
    Size,
    as_index,
    constant_index,
    empty,
    loop_index,
    map_elements,
    product,
    size_of,
    sizes_of,
)
from lowerkit.mlir import arith, ir, linalg, tensor
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.numbers import sizes_from
from lowerkit.passes.raising.core.raise_views import joined, reshaped, split
from lowerkit.passes.raising.core.slices import part, subtract
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    from_builtin,
    int_of,
    ints_of,
    tensor_info,
    to_builtin,
)


def transposed(value: ir.Value, order: Sequence[int]) -> ir.Value:
    """Returns the tensor whose dim i is dim ``order[i]`` of ``value``; the tensor itself for the identity."""
    if list(order) == list(range(len(order))):
        return value
    destination = empty([size_of(value, axis) for axis in order], value.type.element_type)
    op = linalg.transpose(value, outs=[destination], permutation=list(order))
    return op.operation.results[0]


def _order(op: ir.Operation, order: Sequence[int]) -> Sequence[ir.Value]:
    return [from_builtin(transposed(to_builtin(op.operands[0]), order), tensor_info(op.results[0]))]


def _permute(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """permute: (input, order)."""
    info = tensor_info(op.operands[0])
    return _order(op, [info.normalized_axis(axis) for axis in ints_of(op.operands[1])])


def _transpose(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """transpose.int, swapaxes, swapdims: (input, dim, dim)."""
    info = tensor_info(op.operands[0])
    if not info.rank:
        return [op.operands[0]]
    one, other = (info.normalized_axis(int_of(operand)) for operand in op.operands[1:])
    order = list(range(info.rank))
    order[one], order[other] = other, one
    return _order(op, order)


def _matrix_transpose(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """t, mT, adjoint of reals: the last two dims change places."""
    rank = tensor_info(op.operands[0]).rank
    return _order(op, [*range(rank - 2), rank - 1, rank - 2] if rank > 1 else range(rank))


def _reverse_dims(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """numpy_T: the dims stand in the opposite order."""
    return _order(op, list(reversed(range(tensor_info(op.operands[0]).rank))))


def _move_dims(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """movedim: (input, source, destination): ints or lists of ints; the other dims keep their order."""
    info = tensor_info(op.operands[0])
    sources, places = (
        [info.normalized_axis(axis) for axis in ([int_of(operand)] if _is_int(operand) else ints_of(operand))]
        for operand in op.operands[1:]
    )
    others = iter([axis for axis in range(info.rank) if axis not in sources])
    taken = dict(zip(places, sources, strict=True))
    return _order(op, [taken[place] if place in taken else next(others) for place in range(info.rank)])


def _is_int(value: ir.Value) -> bool:
    return str(value.type) == "!torch.int"


def taken(value: ir.Value, axis: int, count: Size, place: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Takes ``count`` elements along one axis: the i-th stands at ``place(i)`` of index values, in range."""

    def position() -> ir.Value:
        return scalar.convert(place(loop_index(0)), i64)

    i64 = ir.IntegerType.get_signless(64)
    return GatherOp.build(value, map_elements([], [count], i64, position), axis=axis)


def taken_at(value: ir.Value, axis: int, positions: Sequence[int]) -> ir.Value:
    """Takes the elements at constant positions along one axis."""
    numbers = ir.DenseElementsAttr.get(np.asarray(positions, dtype=np.int64))
    return GatherOp.build(value, arith.ConstantOp(numbers.type, numbers).result, axis=axis)


def flipped(value: ir.Value, axis: int) -> ir.Value:
    """Reverses the elements along one axis."""
    extent = size_of(value, axis)
    if isinstance(extent, int):
        return taken_at(value, axis, list(reversed(range(extent)))) if extent > 1 else value
    last = arith.SubIOp(extent, constant_index(1)).result
    return taken(value, axis, extent, lambda place: arith.SubIOp(last, place).result)


def _flip(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """flip: (input, dims); PyTorch lets a tensor of rank 0 be flipped along a dim that it has not."""
    value, info = to_builtin(op.operands[0]), tensor_info(op.operands[0])
    named = ints_of(op.operands[1]) if len(op.operands) > 1 else [1 if "lr" in op.name else 0]
    for axis in sorted({info.normalized_axis(axis) for axis in named}) if info.rank else []:
        value = flipped(value, axis)
    return [from_builtin(value, tensor_info(op.results[0]))]


def _rotate(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """rot90: (input, times, dims): quarter turns from the first dim to the second."""
    value, info, times = to_builtin(op.operands[0]), tensor_info(op.operands[0]), int_of(op.operands[1]) % 4
    one, other = (info.normalized_axis(axis) for axis in ints_of(op.operands[2]))
    order = list(range(info.rank))
    order[one], order[other] = other, one
    for axis in {1: [other], 2: [one, other], 3: [one]}.get(times, []):
        value = flipped(value, axis)
    return [from_builtin(transposed(value, order) if times % 2 else value, tensor_info(op.results[0]))]


def _roll(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """roll: (input, shifts, dims): two slices change places; without dims the tensor is rolled as a vector."""
    value, info = to_builtin(op.operands[0]), tensor_info(op.operands[0])
    shifts, axes = sizes_from(op.operands[1]), ints_of(op.operands[2])
    sizes = sizes_of(value)
    if not info.rank:
        return [op.operands[0]]
    if not axes:
        rolled = _rolled(reshaped(value, [product(sizes)]), shifts[0], 0)
        return [from_builtin(reshaped(rolled, sizes), tensor_info(op.results[0]))]
    for shift, dim in zip(shifts, axes, strict=True):
        value = _rolled(value, shift, info.normalized_axis(dim))
    return [from_builtin(value, tensor_info(op.results[0]))]


def _rolled(value: ir.Value, shift: Size, axis: int) -> ir.Value:
    """Moves every element by ``shift`` places along ``axis``, around the end; an open extent may be less than that."""
    extent = size_of(value, axis)
    turned = _remainder(shift, extent)  # how many come from the end to the front
    if turned == 0:
        return value
    rest = subtract(extent, turned)
    return tensor.ConcatOp(value.type, axis, [part(value, axis, rest, turned), part(value, axis, 0, rest)]).result


def _remainder(shift: Size, extent: Size) -> Size:
    """Returns the shift as one of 0 to before ``extent``; 0 where there are no elements."""
    if isinstance(shift, int) and isinstance(extent, int):
        return shift % extent if extent else 0
    if shift == 0:
        return 0
    at_least_one = arith.MaxSIOp(as_index(extent), constant_index(1)).result
    whole = arith.FloorDivSIOp(as_index(shift), at_least_one).result
    return arith.SubIOp(as_index(shift), arith.MulIOp(whole, at_least_one).result).result


def _pixel_shuffle(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """pixel_shuffle: (input, factor): [..., c * r * r, h, w] to [..., c, h * r, w * r]."""
    value, factor = to_builtin(op.operands[0]), int_of(op.operands[1])
    front = value.type.rank - 3
    value = split(value, front, [-1, factor, factor])
    value = transposed(value, [*range(front + 1), *(front + axis for axis in (3, 1, 4, 2))])
    value = joined(joined(value, front + 3, front + 5), front + 1, front + 3)
    return [from_builtin(value, tensor_info(op.results[0]))]


def _pixel_unshuffle(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """pixel_unshuffle: (input, factor): undoes pixel_shuffle."""
    value, factor = to_builtin(op.operands[0]), int_of(op.operands[1])
    front = value.type.rank - 3
    value = split(split(value, front + 2, [-1, factor]), front + 1, [-1, factor])
    value = transposed(value, [*range(front + 1), *(front + axis for axis in (2, 4, 1, 3))])
    return [from_builtin(joined(value, front, front + 3), tensor_info(op.results[0]))]


def _channel_shuffle(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """channel_shuffle: (input, groups): the channels of each group are dealt out among the others."""
    value = split(to_builtin(op.operands[0]), 1, [int_of(op.operands[1]), -1])
    value = transposed(value, [0, 2, 1, *range(3, value.type.rank)])
    return [from_builtin(joined(value, 1, 3), tensor_info(op.results[0]))]


@dataclass(frozen=True)
class RaisePermutations(TablePass):
    """Raises permutations of dims and elements. Precondition: none; orders must be constants."""

    name: ClassVar[str] = "raise-permutations"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.{name}": _permute for name in ("permute",)},
        **{
            f"torch.aten.{name}": _transpose for name in ("transpose.int", "transpose_copy.int", "swapaxes", "swapdims")
        },
        **{f"torch.aten.{name}": _matrix_transpose for name in ("t", "mT")},
        "torch.aten.numpy_T": _reverse_dims,
        "torch.aten.movedim.int": _move_dims,
        "torch.aten.movedim.intlist": _move_dims,
        **{f"torch.aten.{name}": _flip for name in ("flip", "fliplr", "flipud")},
        "torch.aten.rot90": _rotate,
        "torch.aten.roll": _roll,
        "torch.aten.pixel_shuffle": _pixel_shuffle,
        "torch.aten.pixel_unshuffle": _pixel_unshuffle,
        "torch.aten.channel_shuffle": _channel_shuffle,
    }
