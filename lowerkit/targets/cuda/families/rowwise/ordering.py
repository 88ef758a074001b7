"""``lk.sort`` and ``lk.topk``: rows of integers of 64 bits, each a key and a position, in Triton's sorting networks.

Vocabulary: see :mod:`~lowerkit.targets.cuda.families.rowwise.keys`; ``places`` are how many of the smallest items are
carried, a power of two.

A row that fits into a tile is sorted in registers. Of longer ones, parts give their first elements
(:mod:`~lowerkit.targets.cuda.families.rowwise.long_topk`), or chunks are sorted and merged, as all rows of 64 bits are
(:mod:`~lowerkit.targets.cuda.families.rowwise.long_sort`). Descending keys are turned over. Values are read again by
their positions, bit for bit.
"""

from __future__ import annotations

from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.rowwise.keys import NOTHING, WIDE, Order, key_of, write_ordered
from lowerkit.targets.cuda.families.rowwise.long_sort import sorted_in_runs
from lowerkit.targets.cuda.families.rowwise.long_topk import first_of_parts
from lowerkit.targets.cuda.families.rowwise.row_regions import RowRegion, read_rows
from lowerkit.targets.cuda.families.rowwise.row_tiles import RowTile, power_of_two
from lowerkit.targets.cuda.families.rowwise.rows import Piece, Rows
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.triton.tensors import Axis
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal
from lowerkit.targets.region_view import RegionView

_ELEMENTS = ("f32", "f16", "bf16", "i1", "i8", "i16", "i32", *WIDE)
_LONGEST_SORT = 2048
_MOST_PLACES = 256
_LONGEST = 2**31


class OrderingFamily(KernelFamily):
    """``lk.sort`` and ``lk.topk`` of every element type, along any axis."""

    name: ClassVar[str] = "ordering"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        found = read_rows(region, ("lk.sort", "lk.topk"), _ELEMENTS, several_results=True)
        if isinstance(found, Refusal):
            return found
        attributes = found.anchor.attributes
        axis = ir.IntegerAttr(attributes["axis"]).value
        length = found.source.sizes[axis]
        if found.anchor.name == "lk.sort":
            if not isinstance(length, int):
                return Refusal(f"rows of {render(length)}: how often runs are merged must be known to sort them")
            wanted, descending = length, ir.BoolAttr(attributes["descending"]).value
        else:
            wanted, descending = ir.IntegerAttr(attributes["k"]).value, ir.BoolAttr(attributes["largest"]).value
        order = Order(found, axis, descending, wanted)
        whole = isinstance(length, int) and length <= _LONGEST_SORT
        if not order.wide and not whole and wanted <= _MOST_PLACES:
            return first_of_parts(self.name, order)
        if order.wide or not whole:
            if not isinstance(length, int):
                kept = "keys of 64 bits" if order.wide else f"the first {wanted}, more than {_MOST_PLACES}"
                return Refusal(f"{kept} of rows of {render(length)}: how often runs are merged must be known")
            if length >= _LONGEST:
                return Refusal(f"rows of {length}: positions have 31 bits")
            return sorted_in_runs(self.name, order)
        writer = KernelWriter()
        tile = found.tile(found.source, (axis,), _choose, "i64")
        rows = Rows(writer, found.source.sizes, (axis,), tile, wide=found.frame.wide)
        places = power_of_two(wanted)
        with rows.pieces() as piece:
            items = _items(found, rows, piece, descending)
            text = f"tl.sort({items})" if places == tile.columns else f"tl.topk({items}, {places}, descending=False)"
            first = writer.let(text, "first")
        _write_results(found, rows, first, places, wanted)
        return found.planned(self.name, writer, rows, max(1, tile.columns.bit_length() - 1))


def _items(found: RowRegion, rows: Rows, piece: Piece, descending: bool) -> str:
    writer, element = rows.writer, found.source.element
    key = key_of(writer, rows.load(piece, found.source, element), element, descending)
    item = writer.let(f"({key}.to(tl.int64) << 32) | {piece.axes[1].text}.to(tl.int64)")
    return item if piece.mask is None else writer.let(f"tl.where({piece.mask}, {item}, {NOTHING})")


def _write_results(found: RowRegion, rows: Rows, items: str, places: int, wanted: int) -> None:
    writer, source = rows.writer, found.source
    kept = tuple(source.sizes[axis] for axis in rows.kept)
    place = writer.let(f"tl.arange(0, {places})", "place")
    at = writer.let(f"{items} & {0xFFFFFFFF}", "at")
    row, lies = rows.row, place
    masks = [] if wanted == places else [f"({place} < {wanted})"]
    if rows.tile.rows > 1:
        row, lies = f"{row}[:, None]", f"{place}[None, :]"
        masks = [f"{each}[None, :]" for each in masks]
        if rows.row_mask is not None:
            masks.append(f"{rows.row_mask}[:, None]")
    mask = writer.let(" & ".join(masks), "mask") if masks else None
    along = (source.sizes[rows.reduced[0]],)
    row_axis = Axis(row, rows.kept, kept)
    places_axis, source_axis = Axis(lies, rows.reduced, along), Axis(at, rows.reduced, along)
    write_ordered(writer, found, [row_axis, places_axis], [row_axis, source_axis], at, mask)


def _choose(rows: KernelExpr, length: KernelExpr, along: bool, width: int) -> RowTile:
    """Tiles of items; how a row lies in memory matters less than the network."""
    assert isinstance(length, int), "others are not sorted in one tile"
    columns = max(2, power_of_two(length))
    count = max(1, 256 // columns)
    if isinstance(rows, int):
        count = min(count, power_of_two(rows))
    return RowTile(count, columns, True, max(1, min(8, count * columns // 256)))
