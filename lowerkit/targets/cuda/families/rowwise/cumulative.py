"""``lk.cumulative``: scans along rows, as trees; a row longer than a tile carries its value from piece to piece."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.rowwise.folds import combiner
from lowerkit.targets.cuda.families.rowwise.row_regions import read_rows
from lowerkit.targets.cuda.families.rowwise.row_tiles import RowTile, choose_rows
from lowerkit.targets.cuda.families.rowwise.rows import Piece, Rows
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.triton.scalars import TYPES, constant, converted
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal
from lowerkit.targets.region_view import RegionView

_NUMBERS = ("f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64")
_HELD = 4096


class CumulativeFamily(KernelFamily):
    """``lk.cumulative`` of numbers, with an epilogue."""

    name: ClassVar[str] = "cumulative"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        found = read_rows(region, ("lk.cumulative",), _NUMBERS)
        if isinstance(found, Refusal):
            return found
        attributes = found.anchor.attributes
        kind = combiner(ir.StringAttr(attributes["kind"]).value, found.source.element)
        exclusive, reverse = (ir.BoolAttr(attributes[each]).value for each in ("exclusive", "reverse"))
        writer = KernelWriter()
        axis = ir.IntegerAttr(attributes["axis"]).value
        rows = found.rows(writer, found.source, (axis,), _choose, kind.carried)
        helper = kind.helper(writer)
        start = constant(kind.neutral, kind.carried)
        other = constant(kind.neutral, found.source.element)
        carried = ""
        if not rows.tile.whole:
            carried = writer.fresh("carried")
            shape = f"[{rows.tile.rows}]" if rows.tile.rows > 1 else "[]"
            writer.line(f"{carried} = tl.full({shape}, {start}, {TYPES[kind.carried]})")
        with rows.pieces(backwards=reverse) as piece:
            read = _neighbours(rows, piece, 1 if reverse else -1) if exclusive else piece
            value = rows.load(read, found.source, kind.carried, other)
            way = ", reverse=True" if reverse else ""
            running = writer.let(f"tl.associative_scan({value}, {rows.axis}, {helper}{way})", "running")
            if carried:
                running = writer.let(kind.pattern.format(rows.spread(carried), running), "running")
                whole = writer.let(f"tl.reduce({value}, {rows.axis}, {helper})")
                writer.line(f"{carried} = {kind.pattern.format(carried, whole)}")
            result = writer.let(converted(running, kind.carried, found.result), "value")
            found.epilogue.write(writer, result, piece.axes)
        return found.planned(self.name, writer, rows, 1)


def _neighbours(rows: Rows, piece: Piece, distance: int) -> Piece:
    """Returns the piece whose elements stand ``distance`` behind those of another; neutral where there are none."""
    axis = piece.axes[1]
    text = rows.writer.let(f"{axis.text} + {distance}", "column")
    there = f"({text} >= 0)" if distance < 0 else f"({text} < {render(rows.length)})"
    masks = [each for each in (axis.mask, there) if each is not None]
    moved = replace(axis, text=text, mask=rows.writer.let(" & ".join(masks), "inside"))
    return Piece((piece.axes[0], moved), piece.column, moved.mask)


def _choose(rows: KernelExpr, length: KernelExpr, along: bool, width: int) -> RowTile:
    return choose_rows(rows, length, along, width, _HELD)
