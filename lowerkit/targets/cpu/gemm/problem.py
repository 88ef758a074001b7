"""What the GEMM writers are given: a batch of products of rows by columns over contiguous operands."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowerkit.targets.cpu.gemm.arithmetic import BF16_PAIRS, Arithmetic
from lowerkit.targets.cpu.gemm.tile_selection import Tile
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import KernelExpr

__all__ = ["RowGemm", "column_masks", "in_pairs"]


@dataclass(frozen=True)
class RowGemm:
    """A batch of products ``A[rows, depth] x B[depth, columns]`` over contiguous operands, sizes checked.

    Attributes:
        batch: sizes of the batch dimensions that are not part of the rows.
        batch_extents: the same as expressions for the runtime.
        rows, rows_extent: rows of A and of the result, likewise.
        columns: N.
        numbers: K, in numbers of the tensor.
        a, b: the operands. Each lies in elements of ``arithmetic``, or in single numbers that the kernel brings into
            elements on the way; strides count what it lies in.
        a_batch, b_batch: from one matrix to the next along each batch dimension (0 where it is broadcast); of A for
            each of its rows, whose number may be unknown.
        a_row, a_depth: between neighbours of A along rows and depth.
        b_transposed: B lies as [columns, depth].
        b_weight: number of the operand when B is a weight, None for a runtime tensor.
        b_is_filter: B is the filter of a convolution, [columns, depth, 1...].
    """

    batch: tuple[Index, ...]
    batch_extents: tuple[KernelExpr, ...]
    rows: Index
    rows_extent: KernelExpr
    columns: int
    numbers: int
    a: Buffer
    b: Buffer
    a_batch: tuple[int, ...]
    b_batch: tuple[int, ...]
    a_row: int
    a_depth: int
    b_transposed: bool
    b_weight: int | None
    arithmetic: Arithmetic
    b_is_filter: bool = False

    @property
    def depth(self) -> int:
        """K in elements; the last one may lack numbers."""
        return -(-self.numbers // self.arithmetic.numbers)

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return self.arithmetic.accumulator


def in_pairs(problem: RowGemm) -> RowGemm:
    """Returns the same product of bf16, multiplied pair by pair.

    A whose rows are whole pairs one behind the other is read as pairs, and so is a weight, which is packed so; another
    A or B stays in single numbers. With a B whose rows end within a pair the problem stays as it was: widened.
    """
    odd = problem.numbers % 2
    if problem.b_weight is None and problem.b_transposed and odd:
        return problem
    a, b = problem.a, problem.b
    a_row, a_batch = problem.a_row, problem.a_batch
    if problem.a_depth == 1 and not odd and not any(stride % 2 for stride in (a_row, *a_batch)):
        a, a_row, a_batch = Buffer(a.pointer, BF16_PAIRS.stored), a_row // 2, tuple(n // 2 for n in a_batch)
    if problem.b_weight is not None:
        b = Buffer(b.pointer, BF16_PAIRS.stored)
    return replace(problem, a=a, b=b, a_row=a_row, a_batch=a_batch, arithmetic=BF16_PAIRS)


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
