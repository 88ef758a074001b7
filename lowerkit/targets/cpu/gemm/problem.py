"""What the GEMM writers are given: a batch of products of rows by columns over contiguous operands."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cpu.gemm.tile_selection import Tile
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import KernelExpr

__all__ = ["RowGemm", "column_masks"]


@dataclass(frozen=True)
class RowGemm:
    """A batch of products ``A[rows, depth] x B[depth, columns]`` over contiguous operands, sizes checked.

    Attributes:
        batch: sizes of the batch dimensions that are not part of the rows.
        batch_extents: the same as expressions for the runtime.
        rows, rows_extent: rows of A and of the result, likewise.
        columns, depth: N and K.
        a, b: the operands, of ``element``; ``i32`` stands for four bytes that follow each other along the depth.
        a_batch, b_batch: elements from one matrix to the next along each batch dimension (0 where it is broadcast).
        a_row, a_depth: elements between neighbours of A along rows and depth.
        b_transposed: B lies as [columns, depth].
        b_weight: number of the operand when B is a weight, None for a runtime tensor.
        b_is_filter: B is the filter of a convolution, [columns, depth, 1...].
    """

    batch: tuple[Index, ...]
    batch_extents: tuple[KernelExpr, ...]
    rows: Index
    rows_extent: KernelExpr
    columns: int
    depth: int
    a: Buffer
    b: Buffer
    a_batch: tuple[int, ...]
    b_batch: tuple[int, ...]
    a_row: int
    a_depth: int
    b_transposed: bool
    b_weight: int | None
    element: str
    b_is_filter: bool = False

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return self.element if self.element in ("f64", "i32") else "f32"


def column_masks(frame: KernelFrame, columns: int, tile: Tile, column: Index) -> list[Value | None]:
    """One mask per vector of the panel that starts at ``column``, None where every panel is whole."""
    text = frame.text
    if columns % tile.panel == 0:
        return [None] * tile.vectors
    if columns < tile.panel:
        return [
            None if columns >= (v + 1) * tile.lanes else text.mask(columns - v * tile.lanes, tile.lanes)
            for v in range(tile.vectors)
        ]
    left = text.isub(columns, column)
    return [text.mask(text.as_value(text.isub(left, v * tile.lanes)), tile.lanes) for v in range(tile.vectors)]
