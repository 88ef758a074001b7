"""Indexing by several tensors at once: ``x[:, i, j]`` becomes a look-up by one tensor in one merged dim.

Vocabulary
    index list  for each leading dim of a tensor an index tensor or None, as ``index.Tensor`` and ``index_put`` take it.
    merged      the tensor with its indexed dims side by side and joined to one.
    position    where an element stands in the merged dim: the coordinates of the index tensors in one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    cast,
    common_sizes,
    expand,
    permute,
    product,
    size,
    sizes_of,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    TORCH_DTYPE_CODES,
    RefusalError,
    TensorInfo,
    build,
    constant_int,
    constant_none,
    constant_number,
    from_builtin,
    is_none,
    tensor_info,
)

INTEGERS = ("si8", "si16", "si32", "si64")


@dataclass(frozen=True)
class IndexedDims:
    """What an index list does to a tensor.

    Attributes:
        order: the dims of the tensor, the indexed ones side by side; the identity where they are so already.
        axis: where the indexed dims begin in that order.
        sizes: of the indexed dims; int values of those that are open.
        indices: the index tensors, broadcast to one shape.
    """

    order: tuple[int, ...]
    axis: int
    sizes: tuple[int | ir.Value, ...]
    indices: tuple[ir.Value, ...]

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the index tensors."""
        return tensor_info(self.indices[0]).shape

    def merged(self, value: ir.Value) -> ir.Value:
        """Returns ``value`` with the indexed dims joined at ``axis``."""
        value = permute(value, self.order)
        if len(self.sizes) == 1:
            return value
        shape = sizes_of(value)
        end = self.axis + len(self.sizes)
        return view(value, [*shape[: self.axis], product(self.sizes), *shape[end:]])

    def split(self, merged: ir.Value) -> ir.Value:
        """Undoes :meth:`merged`."""
        if len(self.sizes) > 1:
            shape = sizes_of(merged)
            merged = view(merged, [*shape[: self.axis], *self.sizes, *shape[self.axis + 1 :]])
        return permute(merged, [self.order.index(axis) for axis in range(len(self.order))])


def indexed_dims(value: ir.Value, items: Sequence[ir.Value]) -> IndexedDims:
    """Reads an index list of integer tensors; refuses bool masks, whose result has a size that depends on data."""
    info = tensor_info(value)
    used = [axis for axis, item in enumerate(items) if not is_none(item)]
    if not used or len(items) > info.rank:
        raise RefusalError(f"{len(used)} indices into {info}")
    for axis in used:
        if tensor_info(items[axis]).dtype not in INTEGERS:
            raise RefusalError(
                f"indices of {tensor_info(items[axis])}: the size of the result would depend on the data"
            )
    adjacent = used == list(range(used[0], used[0] + len(used)))
    # Index tensors with a dim between them put their own dims first.
    order = range(info.rank) if adjacent else [*used, *(axis for axis in range(info.rank) if axis not in used)]
    if len(used) == 1:
        return IndexedDims(tuple(order), used[0], (-1,), (items[used[0]],))
    indices = [cast(items[axis], "si64") for axis in used]
    common = common_sizes(indices)
    shape = tuple(item if isinstance(item, int) else None for item in common)
    broadcast = [item if tensor_info(item).shape == shape else expand(item, common) for item in indices]
    extents = tuple(size(value, axis) for axis in used)
    return IndexedDims(tuple(order), used[0] if adjacent else 0, extents, tuple(broadcast))


def positions(dims: IndexedDims, *, clamped: bool) -> ir.Value:
    """Returns the positions in the merged dim. A single index tensor is returned as it is.

    A coordinate out of range is clamped with ``clamped``; without, its position is one that is out of range too.
    """
    if len(dims.sizes) == 1:
        return dims.indices[0]
    total = product(dims.sizes)
    linear: ir.Value | None = None
    valid: ir.Value | None = None
    for index, extent in zip(dims.indices, dims.sizes, strict=True):
        place = from_the_front(index, extent)
        if clamped:
            place = build("torch.aten.clamp", [place, constant_number(0), _last(extent)], [place.type])[0]
        else:
            inside = is_inside(place, extent)
            valid = inside if valid is None else binary("bitwise_and", valid, inside)
        linear = place if linear is None else binary("add", binary_scalar("mul", linear, extent), place)
    assert linear is not None, "an index list has an index"
    return linear if valid is None else where(valid, linear, total)


def _last(size: int | ir.Value) -> ir.Value:
    if isinstance(size, int):
        return constant_number(size - 1)
    return build("torch.aten.sub.int", [size, constant_int(1)], [size.type])[0]


def from_the_front(index: ir.Value, size: int | ir.Value) -> ir.Value:
    """Returns indices that count from the front: those below 0 count from the end."""
    negative = binary_scalar("lt", index, 0, "i1")
    return build("torch.aten.where.self", [negative, binary_scalar("add", index, size), index], [index.type])[0]


def is_inside(place: ir.Value, size: int | ir.Value) -> ir.Value:
    """Whether each index is in ``0 ... size - 1``."""
    return binary("bitwise_and", binary_scalar("ge", place, 0, "i1"), binary_scalar("lt", place, size, "i1"))


def where(condition: ir.Value, value: ir.Value, number: float | ir.Value) -> ir.Value:
    """Returns ``value`` where the condition holds, else a number."""
    number = number if isinstance(number, ir.Value) else constant_number(number)
    return build("torch.aten.where.ScalarOther", [condition, value, number], [value.type])[0]


def counted(size: int | ir.Value, stride: int | ir.Value, axis: int, rank: int) -> ir.Value:
    """Returns ``0, stride, 2 * stride, ...`` along one dim of a tensor of ones."""
    shape = [size if dim == axis else 1 for dim in range(rank)]
    if isinstance(size, int) and isinstance(stride, int):
        numbers = ir.DenseElementsAttr.get(np.arange(size, dtype=np.int64).reshape([*shape]) * stride)
        constant = ir.Operation.create("arith.constant", results=[numbers.type], attributes={"value": numbers})
        return from_builtin(constant.result, TensorInfo(tuple(numbers.type.shape), "si64"))
    end = constant_int(size) if isinstance(size, int) else size
    kind = TensorInfo((size if isinstance(size, int) else None,), "si64").torch_type()
    options = [constant_int(TORCH_DTYPE_CODES["si64"]), constant_none(), constant_none(), constant_none()]
    places = build("torch.aten.arange", [end, *options], [kind])[0]
    return view(binary_scalar("mul", places, stride), shape)
