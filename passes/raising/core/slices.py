"""Parts of builtin tensors along one axis."""

from __future__ import annotations

from lowerkit.dialect.linalg_builder import (
    Size,
    as_index,
    constant_index,
    dynamic_values,
    empty,
    sizes_of,
    static_shape,
)
from lowerkit.mlir import arith, ir, tensor


def part(value: ir.Value, axis: int, start: Size, count: Size, step: int = 1) -> ir.Value:
    """Takes ``count`` positions from ``start`` on, ``step`` apart, along ``axis``; they are in range."""
    sizes = sizes_of(value)
    counts = [*sizes[:axis], count, *sizes[axis + 1 :]]
    if isinstance(start, int) and start == 0 and step == 1 and isinstance(count, int) and count == sizes[axis]:
        return value
    if 0 in (*static_shape(sizes), *static_shape(counts)):
        # A slice of nothing does not verify: its first position is none.
        return empty(
            [0 if size == 0 else count for size, count in zip(sizes, counts, strict=True)], value.type.element_type
        )
    starts, steps = _along(axis, len(sizes), start, step)
    kind = ir.RankedTensorType.get(static_shape(counts), value.type.element_type)
    return tensor.ExtractSliceOp(
        kind,
        value,
        dynamic_values(starts),
        dynamic_values(counts),
        [],
        static_shape(starts),
        static_shape(counts),
        steps,
    ).result


def with_part(value: ir.Value, piece: ir.Value, axis: int, start: Size, step: int = 1) -> ir.Value:
    """Returns ``value`` with ``piece`` in the place of what :func:`part` takes."""
    counts = sizes_of(piece)
    if 0 in (*static_shape(counts), *static_shape(sizes_of(value))):
        return value
    starts, steps = _along(axis, len(counts), start, step)
    return tensor.InsertSliceOp(
        piece,
        value,
        dynamic_values(starts),
        dynamic_values(counts),
        [],
        static_shape(starts),
        static_shape(counts),
        steps,
    ).result


def _along(axis: int, rank: int, start: Size, step: int) -> tuple[list[Size], list[int]]:
    starts: list[Size] = [start if dim == axis else 0 for dim in range(rank)]
    return starts, [step if dim == axis else 1 for dim in range(rank)]


def minimum(left: Size, right: Size) -> Size:
    """Returns the smaller of two sizes."""
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return left if left == right else arith.MinSIOp(as_index(left), as_index(right)).result


def maximum(left: Size, right: Size) -> Size:
    """Returns the larger of two sizes."""
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return left if left == right else arith.MaxSIOp(as_index(left), as_index(right)).result


def subtract(left: Size, right: Size) -> Size:
    """Returns ``left - right``."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return left if right == 0 else arith.SubIOp(as_index(left), as_index(right)).result


def add(left: Size, right: Size) -> Size:
    """Returns ``left + right``."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return left if right == 0 else arith.AddIOp(as_index(left), as_index(right)).result


def within(place: Size, extent: Size) -> Size:
    """Returns a bound of a slice, counted from the end where it is below 0, as one from 0 to ``extent``."""
    if isinstance(place, int):
        return minimum(place, extent) if place >= 0 else maximum(add(extent, place), 0)
    return minimum(maximum(from_the_front(place, extent), 0), extent)


def from_the_front(place: Size, extent: Size) -> Size:
    """Returns a position that may count from the end as one that counts from the front."""
    if isinstance(place, int):
        return add(extent, place) if place < 0 else place
    if _is_extent(place):
        return place
    negative = arith.CmpIOp(arith.CmpIPredicate.slt, place, constant_index(0)).result
    return arith.SelectOp(negative, as_index(add(place, extent)), place).result


def _is_extent(place: ir.Value) -> bool:
    owner = place.owner
    return not isinstance(owner, ir.Block) and owner.operation.name == "tensor.dim"


def count_of(start: Size, end: Size, step: int) -> Size:
    """Returns how many positions a slice has."""
    span = maximum(subtract(end, start), 0)
    if step == 1:
        return span
    if isinstance(span, int):
        return -(-span // step)
    return arith.DivUIOp(as_index(add(span, step - 1)), constant_index(step)).result
