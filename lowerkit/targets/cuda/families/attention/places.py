"""Where the parts of a block of attention lie: its rows, its share of the keys, runs of features, and the pointers."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cuda.families.attention.problem import Attention
from lowerkit.targets.cuda.families.attention.tiles import AttentionTile, power, runs_of
from lowerkit.targets.cuda.model.attentions import AttentionShape
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, Tensor, offset_text
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression, product


@dataclass(frozen=True)
class Pass:
    """One way to go over an attention.

    Attributes:
        tile: its tile.
        stacked: whether a matrix holds the queries of a whole group.
        asked: what the tile was chosen for.
        splits: shares of the keys. Where there are several, three pointers follow those of the region: to the peaks
            ``[matrices, splits, rows]``, the sums of the same shape, and the totals ``[matrices, splits, rows, Dv]``.
    """

    problem: Attention
    tile: AttentionTile
    stacked: bool
    asked: AttentionShape | None = None
    splits: KernelExpr = 1

    @property
    def matrices(self) -> KernelExpr:
        """How many there are."""
        heads = self.problem.key_heads if self.stacked else self.problem.heads
        return product([self.problem.batch, heads])

    @property
    def rows(self) -> KernelExpr:
        """Rows of a matrix."""
        return expression("mul", self.problem.queries, self.problem.group if self.stacked else 1)

    @property
    def tiles(self) -> KernelExpr:
        """Tiles of rows of a matrix."""
        return expression("ceildiv", self.rows, self.tile.rows)

    @property
    def blocks(self) -> KernelExpr:
        """Of the grid."""
        return product([self.matrices, self.tiles, self.splits])


class Lanes:
    """A run of features, padded to a power of two."""

    def __init__(self, writer: KernelWriter, start: int, count: int) -> None:
        self.padded = power(count)
        lanes = f"tl.arange(0, {self.padded})"
        self.number = writer.let(f"{start} + {lanes}" if start else lanes, "lane")
        self.row = writer.let(f"{self.number}[None, :]", "lane")
        self.column = writer.let(f"{self.number}[:, None]", "lane")
        cut = self.padded != count
        self.row_mask = writer.let(f"{self.row} < {start + count}", "lanes") if cut else None
        self.column_mask = writer.let(f"{self.column} < {start + count}", "lanes") if cut else None


class Places:
    """Where the rows, keys and features of a block lie: names in the kernel that is being written."""

    def __init__(self, writer: KernelWriter, frame: Frame, going: Pass) -> None:
        self.writer, self.going, self.problem = writer, going, going.problem
        self.wide = ".to(tl.int64)" if frame.wide else ""
        tile, problem = going.tile, going.problem
        pid = writer.let(f"tl.program_id(0){self.wide}", "pid")
        self.split = "0"
        if going.splits != 1:
            self.splits = writer.let(render(going.splits), "splits")
            self.split = writer.let(f"{pid} % {self.splits}", "split")
            pid = writer.let(f"{pid} // {self.splits}", "pid")
        if going.tiles == 1:
            self.matrix, number = pid, "0"
        else:
            tiles = writer.let(render(going.tiles), "tiles")
            self.matrix = writer.let(f"{pid} // {tiles}", "matrix")
            number = writer.let(f"{pid} % {tiles}", "tile")
            if problem.causal:  # the tiles that see most keys begin first
                number = writer.let(f"{tiles} - 1 - {number}", "tile")
        self.first = writer.let(f"{number} * {tile.rows}", "first")
        self.row = writer.let(f"({self.first} + tl.arange(0, {tile.rows}){self.wide})[:, None]", "row")
        whole = isinstance(going.rows, int) and going.rows % tile.rows == 0
        self.row_mask = None if whole else writer.let(f"{self.row} < {render(going.rows)}", "rows")
        self.key_number = writer.let(f"tl.arange(0, {tile.keys})", "key")
        self.depth = [Lanes(writer, *run) for run in runs_of(problem.depth, tile.lanes)]
        self.value_depth = [Lanes(writer, *run) for run in runs_of(problem.value_depth, tile.lanes)]

    def row_axes(self) -> list[Axis]:
        """The axes over batch, head and query of the rows."""
        problem = self.problem
        sizes = (problem.batch, problem.heads, problem.queries)
        if self.going.stacked:
            flat = self.writer.let(f"{self.matrix} * {render(self.going.rows)} + {self.row}", "flat")
            return [Axis(flat, (0, 1, 2), sizes, self.row_mask)]
        return [Axis(self.matrix, (0, 1), sizes[:2]), Axis(self.row, (2,), sizes[2:], self.row_mask)]

    def query_number(self) -> str:
        """The query m of each row."""
        if not self.going.stacked:
            return self.row
        return self.writer.let(f"{self.row} % {render(self.problem.queries)}", "query")

    def key_base(self, tensor: Tensor) -> str:
        """The pointer to the keys or values of the matrix."""
        problem = self.problem
        head = self.matrix
        if not self.going.stacked and problem.group > 1:
            head = self.writer.let(f"{self.matrix} // {problem.group}", "shared")
        axis = Axis(head, (0, 1), (problem.batch, problem.key_heads))
        place = offset_text(self.writer, [*tensor.strides[:2], 0, 0], tensor.offset, [axis])
        return self.writer.let(f"p{tensor.pointer} + ({place})", "base")

    def key_range(self) -> tuple[str, str, str | None]:
        """First key of the block, the one behind the last, and up to where all rows see all keys: None for nowhere."""
        writer, tile, problem = self.writer, self.going.tile, self.problem
        start, end = "0", render(problem.keys)
        if problem.causal:
            # A matrix of several heads has all queries in it.
            last = f"{self.first} + {tile.rows}" if not self.going.stacked else render(problem.queries)
            end = writer.let(f"tl.minimum({last}, {end})", "end")
        if self.going.splits != 1:
            share = writer.let(f"(({end} + {tile.keys - 1}) // {tile.keys} + {self.splits} - 1) // {self.splits}")
            start = writer.let(f"{self.split} * {share} * {tile.keys}", "start")
            end = writer.let(f"tl.minimum({start} + {share} * {tile.keys}, {end})", "end")
        if problem.causal and self.going.stacked:
            return start, end, None
        if problem.causal:
            seen = writer.let(f"tl.minimum({self.first} + 1, {end})")
        elif end.isdecimal():
            whole = int(end) // tile.keys * tile.keys
            return start, end, str(whole) if whole else None
        else:
            seen = end
        full = writer.let(f"{start} + tl.maximum({seen} - {start}, 0) // {tile.keys} * {tile.keys}", "full")
        return start, end, full
