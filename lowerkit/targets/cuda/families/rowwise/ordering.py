"""``lk.sort`` and ``lk.topk``: rows of integers of 64 bits, each a key and a position, in Triton's sorting networks.

Vocabulary
    key     an integer of 32 bits that is in order where the elements are: NaN is the largest, both zeros are one
    item    ``key << 32 | position``: items are never equal, so every network is a stable sort
    places  how many of the smallest items are carried, a power of two

Descending keys are turned over. Elements of 64 bits have no such key and are refused. A row that is longer than a tile
gives its first elements in steps: those of each piece are joined with the best so far. Values are read again by their
positions, bit for bit.
"""

from __future__ import annotations

from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.rowwise.row_regions import RowRegion, read_rows
from lowerkit.targets.cuda.families.rowwise.row_tiles import RowTile, power_of_two
from lowerkit.targets.cuda.families.rowwise.rows import Piece, Rows
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.triton.tensors import Axis, load, offset_text, store
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal
from lowerkit.targets.region_view import RegionView

_ELEMENTS = ("f32", "f16", "bf16", "i1", "i8", "i16", "i32")
_LONGEST_SORT = 2048
_PIECE = 1024
_MOST_PLACES = 256
_LARGEST = 2**31 - 1
_NOTHING = 2**63 - 1


class OrderingFamily(KernelFamily):
    """``lk.sort`` and ``lk.topk`` of elements of at most 32 bits."""

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
            if not isinstance(length, int) or length > _LONGEST_SORT:
                return Refusal(f"rows of {render(length)}; at most {_LONGEST_SORT} are sorted")
            wanted, descending = length, ir.BoolAttr(attributes["descending"]).value
        else:
            wanted, descending = ir.IntegerAttr(attributes["k"]).value, ir.BoolAttr(attributes["largest"]).value
        places = power_of_two(wanted)
        tile = found.tile(found.source, (axis,), _choose, "i64")
        if not tile.whole and places > _MOST_PLACES:
            return Refusal(f"the first {wanted} of rows of {render(length)}; at most {_MOST_PLACES} are kept")
        writer = KernelWriter()
        rows = Rows(writer, found.source.sizes, (axis,), tile, wide=found.frame.wide)
        items = _first_items(found, rows, places, descending)
        _write_results(found, rows, items, places, wanted)
        return found.planned(self.name, writer, rows, max(1, tile.columns.bit_length() - 1))


def _first_items(found: RowRegion, rows: Rows, places: int, descending: bool) -> str:
    """Writes the first ``places`` items of each row, in order."""
    writer, batch = rows.writer, f"{rows.tile.rows}, " if rows.tile.rows > 1 else ""
    if not rows.tile.whole:
        best = writer.fresh("best")
        writer.line(f"{best} = tl.full([{batch}{places}], {_NOTHING}, tl.int64)")
        with rows.pieces() as piece:
            items = _items(found, rows, piece, descending)
            joined = f"tl.reshape(tl.join({best}, tl.topk({items}, {places}, descending=False)), [{batch}{2 * places}])"
            writer.line(f"{best} = tl.topk({joined}, {places}, descending=False)")
        return best
    with rows.pieces() as piece:
        items = _items(found, rows, piece, descending)
        text = f"tl.sort({items})" if places == rows.tile.columns else f"tl.topk({items}, {places}, descending=False)"
        return writer.let(text, "first")


def _items(found: RowRegion, rows: Rows, piece: Piece, descending: bool) -> str:
    writer, element = rows.writer, found.source.element
    if element[0] in "fb":
        value = rows.load(piece, found.source, "f32")
        bits = writer.let(f"tl.where({value} == 0, 0.0, {value}).to(tl.int32, bitcast=True)")
        ordered = writer.let(f"tl.where({bits} < 0, {bits} ^ {_LARGEST}, {bits})")
        key = writer.let(f"tl.where({value} != {value}, {_LARGEST}, {ordered})", "key")
    else:
        key = writer.let(f"{rows.load(piece, found.source, element)}.to(tl.int32)", "key")
    if descending:
        key = f"(~{key})"
    item = writer.let(f"({key}.to(tl.int64) << 32) | {piece.axes[1].text}.to(tl.int64)")
    return item if piece.mask is None else writer.let(f"tl.where({piece.mask}, {item}, {_NOTHING})")


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
    for value, result in zip(found.region.returned, found.frame.results, strict=True):
        target = offset_text(writer, result.strides, 0, [row_axis, Axis(lies, rows.reduced, along)])
        if value == found.anchor.results[1]:
            store(writer, result, target, at, mask)
            continue
        from_ = offset_text(writer, source.strides, source.offset, [row_axis, Axis(at, rows.reduced, along)])
        store(writer, result, target, load(writer, source, from_, mask), mask)


def _choose(rows: KernelExpr, length: KernelExpr, along: bool, width: int) -> RowTile:
    """Tiles of items; how a row lies in memory matters less than the network."""
    whole = isinstance(length, int) and length <= _LONGEST_SORT
    columns = max(2, power_of_two(length)) if whole else _PIECE
    count = max(1, 256 // columns)
    if isinstance(rows, int):
        count = min(count, power_of_two(rows))
    return RowTile(count, columns, whole, max(1, min(8, count * columns // 256)))
