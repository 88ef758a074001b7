"""Tiles of a result that is made of slices: places in front of the slice, elements within it.

Vocabulary
    slice    what one index takes out of a table: the dims behind the indexed one
    place    one slice of the result: the dims before
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cuda.families.rowwise.row_tiles import power_of_two
from lowerkit.targets.cuda.triton.tensors import Axis
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression, product

_TILE = 1024
_LONGEST = 1024
_SHORT = 8
"""Slices below are no vectors: their elements are places, too."""


@dataclass(frozen=True)
class SliceTile:
    """A tile: the axis of places and that of elements, the blocks of the grid, and its shape in words.

    Attributes:
        place: the numbers of the places, without the spreading of ``axes``; with their mask.
    """

    axes: tuple[Axis, ...]
    place: Axis
    blocks: KernelExpr
    words: str
    warps: int

    def spread(self, value: str) -> str:
        """Returns a value of each place so that it broadcasts to the tile."""
        return f"{value}[:, None]" if self.axes[0].text != self.place.text else value


def slice_tile(
    writer: KernelWriter, sizes: Sequence[KernelExpr], places: int, *, wide: bool, single: bool = False
) -> SliceTile:
    """Writes which places and elements a block has.

    Args:
        writer: the kernel.
        sizes: of the result.
        places: how many of its dims are places.
        wide: whether coordinates need 64 bits.
        single: a block has one place.
    """
    wide_ = ".to(tl.int64)" if wide else ""
    if not single and product(sizes[places:]) in range(_SHORT):
        return _flat_tile(writer, sizes, wide_)
    count, length = product(sizes[:places]), product(sizes[places:])
    columns = min(_LONGEST, max(4, power_of_two(length))) if isinstance(length, int) else _LONGEST
    rows = 1 if single else max(1, _TILE // columns)
    if isinstance(count, int):
        rows = min(rows, power_of_two(count))
    across = expression("ceildiv", length, columns)
    pid = writer.let(f"tl.program_id(0){wide_}", "pid")
    block, part = pid, "0"
    if across != 1:
        block, part = writer.let(f"{pid} // {render(across)}", "block"), writer.let(f"{pid} % {render(across)}", "part")
    start = f"{part} * {columns} + " if across != 1 else ""
    column = writer.let(f"{start}tl.arange(0, {columns}){wide_}", "column")
    inside = None
    if not (isinstance(length, int) and length % columns == 0):
        inside = writer.let(f"{column} < {render(length)}", "inside")
    place_dims, slice_dims = tuple(range(places)), tuple(range(places, len(sizes)))
    place_sizes, slice_sizes = tuple(sizes[:places]), tuple(sizes[places:])
    blocks = product([expression("ceildiv", count, rows), across])
    words = f"tiles of {rows} x {columns}"
    warps = max(1, min(4, rows * columns // 256))
    if rows == 1:
        place = Axis(block, place_dims, place_sizes)
        return SliceTile((place, Axis(column, slice_dims, slice_sizes, inside)), place, blocks, words, warps)
    row = writer.let(f"{block} * {rows} + tl.arange(0, {rows}){wide_}", "place")
    there = None
    if not (isinstance(count, int) and count % rows == 0):
        there = writer.let(f"{row} < {render(count)}", "there")
    axes = (
        Axis(f"{row}[:, None]", place_dims, place_sizes, None if there is None else f"{there}[:, None]"),
        Axis(f"{column}[None, :]", slice_dims, slice_sizes, None if inside is None else f"{inside}[None, :]"),
    )
    return SliceTile(axes, Axis(row, place_dims, place_sizes, there), blocks, words, warps)


def _flat_tile(writer: KernelWriter, sizes: Sequence[KernelExpr], wide: str) -> SliceTile:
    total = product(sizes)
    block = min(_TILE, max(32, power_of_two(total))) if isinstance(total, int) else _TILE
    flat = writer.let(f"tl.program_id(0){wide} * {block} + tl.arange(0, {block}){wide}", "flat")
    mask = None
    if not (isinstance(total, int) and total % block == 0):
        mask = writer.let(f"{flat} < {render(total)}", "inside")
    axis = Axis(flat, tuple(range(len(sizes))), tuple(sizes), mask)
    warps = max(1, min(4, block // 256))
    return SliceTile((axis,), axis, expression("ceildiv", total, block), f"tiles of {block}", warps)


def joined_mask(writer: KernelWriter, axes: Sequence[Axis], *more: str) -> str | None:
    """Returns the masks of axes as one; None where all is there."""
    masks = [*(axis.mask for axis in axes if axis.mask is not None), *more]
    return writer.let(" & ".join(masks), "mask") if masks else None
