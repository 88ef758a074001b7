"""Rows in a kernel: dims that stay, one row for each place in them, and dims along which a row runs.

Vocabulary
    row       the elements at one place of the kept dims
    piece     the columns of a tile: the whole row, or what one step of a loop takes of it
    fold      what is left of a row when all its elements are combined

A block has ``tile.rows`` rows. With one row, tiles have one dim and folds are scalars; with more, tiles have two dims.
Sums are carried for each place of the tile by itself and added up as a tree at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lowerkit.targets.cuda.families.rowwise.row_tiles import RowTile
from lowerkit.targets.cuda.triton.scalars import NARROW, TYPES, constant, converted
from lowerkit.targets.cuda.triton.tensors import Axis, Tensor, load, offset_text
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression, product

Combine = Callable[[Sequence[str], Sequence[str]], Sequence[str]]


@dataclass(frozen=True)
class Piece:
    """A piece of the rows of a block: its axes, rows first, and which columns there are (None: all)."""

    axes: tuple[Axis, Axis]
    column: str
    mask: str | None


@dataclass(frozen=True)
class Fold:
    """A way to combine elements: values side by side (most have one; positions travel as a second).

    Attributes:
        neutral: each value of a place where there is no element, as text.
        types: of each value, in MLIR's words.
        combine: the values of two places.
        reduce: the values of a tile along its axis (a number), as the text of one value or of a tuple.
    """

    neutral: tuple[str, ...]
    types: tuple[str, ...]
    combine: Combine
    reduce: Callable[[Sequence[str], int], str]


def sum_of(compute: str) -> Fold:
    """Returns the sum of a compute type."""
    return Fold(
        (constant(0, compute),),
        (compute,),
        lambda a, b: [f"{a[0]} + {b[0]}"],
        lambda x, axis: f"tl.sum({x[0]}, {axis})",
    )


class Rows:
    """The rows of a block.

    Attributes:
        kept, reduced: dims of the input, in order.
        sizes: of all dims of the input.
        count, length: how many rows there are, and how long they are.
        row, row_mask: the numbers of the block's rows and which of them there are, one-dimensional (one row: scalars).
    """

    def __init__(
        self,
        writer: KernelWriter,
        sizes: Sequence[KernelExpr],
        reduced: Sequence[int],
        tile: RowTile,
        *,
        wide: bool,
        pid: str = "",
        begin: str = "0",
        end: str = "",
    ) -> None:
        """Writes which rows the block has.

        Args:
            writer: the kernel.
            sizes: of the input.
            reduced: its dims along which rows run.
            tile: of a block.
            wide: whether coordinates need 64 bits.
            pid: the number of the block among those of rows.
            begin, end: the columns that are walked; all.
        """
        self.writer, self.tile, self.sizes = writer, tile, tuple(sizes)
        self.reduced = tuple(reduced)
        self.kept = tuple(axis for axis in range(len(sizes)) if axis not in reduced)
        self.count = product([sizes[axis] for axis in self.kept])
        self.length = product([sizes[axis] for axis in self.reduced])
        self._wide = ".to(tl.int64)" if wide else ""
        self._begin, self._end = begin, end or render(self.length)
        self._cut = bool(end)
        pid = pid or writer.let(f"tl.program_id(0){self._wide}", "pid")
        self.row, self.row_mask = pid, None
        if tile.rows > 1:
            self.row = writer.let(f"{pid} * {tile.rows} + tl.arange(0, {tile.rows}){self._wide}", "row")
            if not (isinstance(self.count, int) and self.count % tile.rows == 0):
                self.row_mask = writer.let(f"{self.row} < {render(self.count)}", "rows")

    @property
    def blocks(self) -> KernelExpr:
        """Blocks of the grid."""
        return expression("ceildiv", self.count, self.tile.rows)

    @property
    def shape(self) -> str:
        """The shape of a tile."""
        return f"[{self.tile.rows}, {self.tile.columns}]" if self.tile.rows > 1 else f"[{self.tile.columns}]"

    @property
    def axis(self) -> int:
        """The axis of a tile along which rows run."""
        return 1 if self.tile.rows > 1 else 0

    def spread(self, value: str) -> str:
        """Returns a value of each row so that it broadcasts to tiles."""
        return f"{value}[:, None]" if self.tile.rows > 1 else value

    def row_axis(self) -> Axis:
        """Returns the rows as an axis for values that have one element for each."""
        return Axis(self.row, self.kept, tuple(self.sizes[axis] for axis in self.kept), self.row_mask)

    @contextmanager
    def pieces(self, *, backwards: bool = False) -> Generator[Piece]:
        """Writes what follows for each piece of the rows: a loop, unless the tile holds whole rows."""
        columns = self.tile.columns
        if self.tile.whole:
            yield self._piece("")
            return
        begin, end = self._begin, self._end
        if not backwards:
            with self.writer.block(f"for start in range({begin}, {end}, {columns}):"):
                yield self._piece("start")
            return
        with self.writer.block(f"for back in range({begin}, {end}, {columns}):"):
            yield self._piece(self.writer.let(f"({end} - 1) // {columns} * {columns} - back", "start"))

    def _piece(self, start: str) -> Piece:
        writer, columns = self.writer, self.tile.columns
        column = writer.let(f"{f'{start} + ' if start else ''}tl.arange(0, {columns}){self._wide}", "column")
        mask = None
        if self._cut or not (isinstance(self.length, int) and self.length % columns == 0):
            mask = writer.let(f"{column} < {self._end}", "inside")
        kept, reduced = (tuple(self.sizes[axis] for axis in axes) for axes in (self.kept, self.reduced))
        if self.tile.rows == 1:
            return Piece((Axis(self.row, self.kept, kept), Axis(column, self.reduced, reduced, mask)), column, mask)
        row_mask = None if self.row_mask is None else f"{self.row_mask}[:, None]"
        column_mask = None if mask is None else f"{mask}[None, :]"
        rows = Axis(f"{self.row}[:, None]", self.kept, kept, row_mask)
        return Piece((rows, Axis(f"{column}[None, :]", self.reduced, reduced, column_mask)), column, column_mask)

    def load(
        self, piece: Piece, tensor: Tensor, compute: str, other: str = "0", strides: Sequence[KernelExpr] = ()
    ) -> str:
        """Returns elements in the compute type; ``other`` where there are none.

        ``strides`` over the dims of the input are those of the tensor, unless they are given.
        """
        strides = strides or tensor.strides
        used = [axis for axis in piece.axes if any(strides[number] != 0 for number in axis.dims)]
        masks = [axis.mask for axis in used if axis.mask is not None]
        mask = self.writer.let(" & ".join(masks), "mask") if masks else None
        place = offset_text(self.writer, strides, tensor.offset, used)
        return self.writer.let(converted(load(self.writer, tensor, place, mask, other), tensor.element, compute))

    def fold(self, fold: Fold, term: Callable[[Piece], Sequence[str]]) -> list[str]:
        """Returns the values of each row; ``term`` gives those of a piece, neutral where there is no element."""
        values = self.carried(fold, term)
        names = [self.writer.fresh("fold") for _ in fold.neutral]
        self.writer.line(f"{', '.join(names)} = {fold.reduce(values, self.axis)}")
        return names

    def carried(self, fold: Fold, term: Callable[[Piece], Sequence[str]]) -> list[str]:
        """Returns the values of each place of a tile, all pieces combined."""
        writer = self.writer
        if self.tile.whole:
            with self.pieces() as piece:
                return [writer.let(value) for value in term(piece)]
        names = [writer.fresh("carried") for _ in fold.neutral]
        for name, neutral, type_ in zip(names, fold.neutral, fold.types, strict=True):
            writer.line(f"{name} = tl.full({self.shape}, {neutral}, {TYPES[type_]})")
        with self.pieces() as piece:
            values = [writer.let(value) for value in term(piece)]
            combined = fold.combine(names, values)
            writer.line(f"{', '.join(names)} = {', '.join(combined)}")
        return names

    def count_text(self, compute: str) -> str:
        """Returns the length of a row as a number of the compute type."""
        if isinstance(self.length, int):
            return constant(float(self.length), compute)
        return f"({render(self.length)}).to({TYPES[compute]})"


def compute_type(element: str) -> str:
    """Returns the type in which rows of an element type are computed."""
    return "f32" if element in NARROW else element


def divided(compute: str, left: str, right: str) -> str:
    """Returns a quotient, rounded to nearest."""
    return f"{left} / {right}" if compute == "f64" else f"tl.div_rn({left}, {right})"


def square_root(compute: str, value: str) -> str:
    """Returns a root, rounded to nearest."""
    return f"libdevice.sqrt({value})" if compute == "f64" else f"tl.sqrt_rn({value})"
