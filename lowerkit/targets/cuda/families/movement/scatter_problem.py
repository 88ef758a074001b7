"""An ``lk.scatter``: where its indices, updates and table lie, and how an element and an update combine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cuda.families.movement.slices import SliceTile
from lowerkit.targets.cuda.families.rowwise.folds import combiner
from lowerkit.targets.cuda.triton.scalars import constant, converted
from lowerkit.targets.cuda.triton.tensors import Axis, Splat, Tensor, load, offset_text
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, product

_KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Scatter:
    """An ``lk.scatter``.

    Attributes:
        table, indices, updates: its operands; a table of one number has the shape of the result, and is nowhere.
        axis, kind: its attributes.
        wide: whether coordinates need 64 bits.
        filled: the number of such a table.
    """

    table: Tensor
    indices: Tensor
    updates: Tensor
    axis: int
    kind: str
    wide: bool
    filled: Splat | None = None

    @property
    def count(self) -> KernelExpr:
        """How many indices there are."""
        return product(self.indices.sizes)

    def positions(self, writer: KernelWriter, number: str, mask: str | None) -> str:
        """Returns the positions that indices name; one out of range names none."""
        axis = Axis(number, tuple(range(len(self.indices.sizes))), self.indices.sizes)
        place = offset_text(writer, self.indices.strides, self.indices.offset, [axis])
        index = writer.let(f"{load(writer, self.indices, place, mask, '0')}.to(tl.int64)")
        return writer.let(
            f"tl.where({index} < 0, {index} + {render(self.table.sizes[self.axis])}, {index})", "position"
        )

    def elements(self, writer: KernelWriter, axes: Sequence[Axis], mask: str | None) -> str:
        """Returns the elements of the table that a tile meets."""
        at = offset_text(writer, self.table.strides, self.table.offset, axes)
        if self.filled is None:
            return load(writer, self.table, at, mask)
        number = constant(self.filled.number, self.filled.element)
        return writer.let(f"tl.where(({at}) * 0 == 0, {number}, {number})", "value")  # in the shape of the tile

    def update(self, writer: KernelWriter, tile: SliceTile, number: str, mask: str | None, *, one: bool = True) -> str:
        """Returns the elements of update ``number`` that a tile meets; ``one``: it is the same for all elements."""
        rank, along = len(self.table.sizes), len(self.indices.sizes)
        strides = self.updates.strides
        every = (*strides[: self.axis], 0, *strides[self.axis + along :], *strides[self.axis : self.axis + along])
        if one and all(every[each] == 0 for axis in tile.axes for each in axis.dims):
            mask = None  # one number for all
        axes = [*tile.axes, Axis(number, tuple(range(rank, rank + along)), self.indices.sizes)]
        return load(writer, self.updates, offset_text(writer, every, self.updates.offset, axes), mask)

    def combined(self, old: str, new: str) -> str:
        """Returns an element and its update combined, of the element type."""
        if self.kind == "set":
            return new
        way = combiner(_KINDS[self.kind], self.table.element)
        sides = (converted(each, self.table.element, way.carried) for each in (old, new))
        return converted(f"({way.pattern.format(*sides)})", way.carried, self.table.element)
