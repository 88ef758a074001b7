"""Indexing by several tensors at once: ``x[:, i, j]`` becomes a look-up by one tensor in one merged dim.

Vocabulary
    index list  for each leading dim of a tensor an index tensor or None, as ``index.Tensor`` and ``index_put`` take it.
    merged      the tensor with its indexed dims side by side and joined to one.
    position    where an element stands in the merged dim: the coordinates of the index tensors in one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.dialect import linalg_builder as builder
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
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
    RefusalError,
    TensorInfo,
    from_builtin,
    is_none,
    tensor_info,
    to_builtin,
)

INTEGERS = ("si8", "si16", "si32", "si64")


@dataclass(frozen=True)
class IndexedDims:
    """What an index list does to a tensor.

    Attributes:
        order: the dims of the tensor, the indexed ones side by side; the identity where they are so already.
        axis: where the indexed dims begin in that order.
        sizes: of the indexed dims; int values of those that are open.
        extents: the same, as builtin sizes.
        indices: the index tensors, broadcast to one shape.
    """

    order: tuple[int, ...]
    axis: int
    sizes: tuple[int | ir.Value, ...]
    extents: tuple[builder.Size, ...]
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
        return IndexedDims(tuple(order), used[0], (-1,), (), (items[used[0]],))
    indices = [cast(items[axis], "si64") for axis in used]
    common = common_sizes(indices)
    shape = tuple(item if isinstance(item, int) else None for item in common)
    broadcast = [item if tensor_info(item).shape == shape else expand(item, common) for item in indices]
    sizes = tuple(size(value, axis) for axis in used)
    extents = tuple(builder.size_of(to_builtin(value), axis) for axis in used)
    return IndexedDims(tuple(order), used[0] if adjacent else 0, sizes, extents, tuple(broadcast))


def positions(dims: IndexedDims, *, clamped: bool) -> ir.Value:
    """Returns the positions in the merged dim. A single index tensor is returned as it is.

    A coordinate out of range is clamped with ``clamped``; without, its position is one that is out of range too.
    """
    if len(dims.sizes) == 1:
        return dims.indices[0]
    indices = [to_builtin(index) for index in dims.indices]
    linear = row_major(indices, dims.extents, builder.sizes_of(indices[0]), clamped=clamped)
    return from_builtin(linear, TensorInfo(dims.shape, "si64"))


def row_major(
    coordinates: Sequence[ir.Value | None],
    extents: Sequence[builder.Size],
    shape: Sequence[builder.Size],
    *,
    clamped: bool,
) -> ir.Value:
    """Returns where elements stand in a flattened tensor, a builtin tensor of i64 of ``shape``.

    Args:
        coordinates: for each dim the coordinates, of integers and of ``shape``; None where they count along that dim.
        extents: of the tensor.
        shape: of the result.
        clamped: a coordinate out of range is clamped; without, the position is the number of elements.
    """
    index, count = ir.IndexType.get(), builder.product(extents)

    def place(*given: ir.Value) -> ir.Value:
        left, linear = iter(given), builder.as_index(0)
        inside = scalar.constant(1, ir.IntegerType.get_signless(1))
        for axis, (coordinate, extent) in enumerate(zip(coordinates, extents, strict=True)):
            size = builder.as_index(extent)
            if coordinate is None:
                here = builder.loop_index(axis)
            else:
                here = scalar.from_the_front(scalar.convert(next(left), index), size)
                if clamped:
                    here = scalar.within(here, size)
                else:
                    inside = scalar.both(inside, scalar.is_within(here, size))
            linear = scalar.add(scalar.multiply(linear, size), here)
        linear = linear if clamped else scalar.select(inside, linear, builder.as_index(count))
        return scalar.convert(linear, ir.IntegerType.get_signless(64))

    operands = [(item, builder.loops(range(len(shape)))) for item in coordinates if item is not None]
    return builder.map_elements(operands, shape, ir.IntegerType.get_signless(64), place)
