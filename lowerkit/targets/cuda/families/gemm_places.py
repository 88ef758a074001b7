"""Which tile of a product a block makes, and the coordinates in it.

Vocabulary
    band     tiles that follow one another in the order of blocks share rows of A or columns of B: ``BAND`` tiles of
             rows, then the next column, so that what they share stays in the L2 cache
    part     a range of K, where K is split
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cuda.families.gemm_problem import Gemm
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile
from lowerkit.targets.cuda.triton.tensors import Axis, Frame
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression

BAND = 8


@dataclass(frozen=True)
class Place:
    """Where a block is: axes of the batch, where rows and columns of its tile begin, and which part of K it sums."""

    problem: Gemm
    wide: str
    batch: list[Axis]
    first_row: str
    first_column: str
    part: str

    def rows(self, writer: KernelWriter, count: int) -> Axis:
        """Writes the coordinates of ``count`` rows of the tile, its first ones, and returns them."""
        row = writer.let(f"({self._wide(self.first_row)} + tl.arange(0, {count}){self.wide})[:, None]", "row")
        rank, sizes = len(self.problem.batch), self.problem.row_sizes
        mask = _inside(writer, row, self.problem.rows, count)
        return Axis(row, tuple(range(rank, rank + len(sizes))), sizes, mask)

    def columns(self, writer: KernelWriter, count: int, start: int = 0, whole: int = 0) -> Axis:
        """Writes the coordinates of columns of the tile and returns them.

        Args:
            writer: the kernel.
            count: how many.
            start: of them in the tile.
            whole: columns of the whole tile, where that is another number.
        """
        at = self._wide(self.first_column) + (f" + {start}" if start else "")
        column = writer.let(f"({at} + tl.arange(0, {count}){self.wide})[None, :]", "column")
        number = len(self.problem.batch) + len(self.problem.row_sizes)
        mask = _inside(writer, column, self.problem.columns, whole or count)
        return Axis(column, (number,), (self.problem.columns,), mask)

    def _wide(self, number: str) -> str:
        return number if number.isdecimal() else f"{number}{self.wide}"


def count_tiles(problem: Gemm, tile: GemmTile) -> tuple[KernelExpr, KernelExpr]:
    """Returns how many tiles lie along rows and columns."""
    return expression("ceildiv", problem.rows, tile.m), expression("ceildiv", problem.columns, tile.n)


def find_place(
    writer: KernelWriter, frame: Frame, problem: Gemm, tile: GemmTile, pid: str, *, narrow: bool = False
) -> Place:
    """Writes which tile has a number.

    Args:
        writer: the kernel.
        frame: of the region.
        problem: the product.
        tile: its tile.
        pid: the number; parts of K follow one another, then tiles, then products of the batch.
        narrow: whether numbers of tiles, and where rows and columns begin, have 32 bits whatever the sizes have.
    """
    wide = ".to(tl.int64)" if frame.wide else ""

    def rendered(size: KernelExpr) -> str:
        text = render(size)
        return writer.let(f"({text}).to(tl.int32)", "count") if narrow and not isinstance(size, int) else text

    tiles_m, tiles_n = count_tiles(problem, tile)
    part = "0"
    if tile.split > 1:
        part, pid = writer.let(f"{pid} % {tile.split}", "part"), writer.let(f"{pid} // {tile.split}", "pid")
    batch: list[Axis] = []
    if problem.batch:
        each = writer.let(rendered(expression("mul", tiles_m, tiles_n)), "tiles")
        number = writer.let(f"{pid} // {each}", "batch")
        if narrow:
            number = writer.let(f"{number}{wide}", "batch")
        batch = [Axis(number, tuple(range(len(problem.batch))), problem.batch)]
        pid = writer.let(f"{pid} % {each}", "pid")
    if tiles_m == 1:
        tile_m, tile_n = "0", pid
    elif tiles_n == 1:
        tile_m, tile_n = pid, "0"
    else:
        m, n = rendered(tiles_m), rendered(tiles_n)
        per_band = writer.let(f"{BAND} * {n}", "band")
        first = writer.let(f"{pid} // {per_band} * {BAND}", "first")
        height = writer.let(f"tl.minimum({m} - {first}, {BAND})", "height")
        inside = writer.let(f"{pid} % {per_band}", "inside")
        tile_m = writer.let(f"{first} + {inside} % {height}", "tile")
        tile_n = writer.let(f"{inside} // {height}", "tile")
    first_row, first_column = (
        at if at == "0" else writer.let(f"{at} * {by}", "start") for at, by in ((tile_m, tile.m), (tile_n, tile.n))
    )
    return Place(problem, wide, batch, first_row, first_column, part)


def _inside(writer: KernelWriter, at: str, size: KernelExpr, by: int) -> str | None:
    if isinstance(size, int) and size % by == 0:
        return None
    return writer.let(f"{at} < {render(size)}", "inside")
