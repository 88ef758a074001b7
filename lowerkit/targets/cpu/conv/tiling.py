"""How a direct convolution is cut: register tile, tiles along lines and pixels, blocks, and the padded copy.

The tile is the cheapest by the cycle model of :mod:`lowerkit.targets.cpu.gemm.microkernel`; blocks are as many lines as
fit in a quarter of L2 with their input.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cpu.conv.problem import ConvProblem
from lowerkit.targets.cpu.conv.window import PaddedLines
from lowerkit.targets.cpu.gemm.tile_selection import Tile, even_split, evict_each_other, l2_bytes, tile_cycles
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.text_builder import element_bytes

__all__ = ["ConvScheme", "choose_scheme", "split_sizes"]


@dataclass(frozen=True)
class ConvScheme:
    """How a convolution is cut.

    Attributes:
        tile: the register tile.
        panels: panels per group.
        group_lines: lines of a tile at most (1 unless lines are shorter than a tile).
        line_groups: tiles along the height: (count, lines, how many have one more).
        columns: tiles along the width, likewise in pixels.
        block_groups: line groups of a block.
        padded: layout of the block's copy, None to read the input where it lies.
    """

    tile: Tile
    panels: int
    line_groups: tuple[int, int, int]
    columns: tuple[int, int, int]
    block_groups: int
    padded: PaddedLines | None


def choose_scheme(problem: ConvProblem, cpu: CpuFeatures) -> ConvScheme:
    """Chooses tile shape, block height and whether input lines are copied."""
    bytes_ = element_bytes(problem.accumulator)
    lanes = cpu.lanes(8 * bytes_)
    height, width = problem.height, problem.width
    depth = problem.group_channels * problem.depth.kernel * height.kernel * width.kernel
    tile, line_groups, columns = _choose_tile(problem, depth, lanes, cpu.vector_registers)
    panels = -(-problem.group_outputs // tile.panel)
    pitch = problem.channels
    copied = not (problem.depth.inside and height.inside and width.inside)
    copied = copied or problem.input.element != problem.arithmetic.operand
    rows = line_groups[1] + bool(line_groups[2]) if columns[0] == 1 else 1
    per_line = columns[1] + bool(columns[2])
    if evict_each_other(rows * per_line, width.stride * pitch * bytes_):
        copied = True
        if evict_each_other(rows * per_line, width.copy_stride * pitch * bytes_):
            pitch = -(-pitch // lanes) * lanes + lanes
    # Blocks: as many lines as fit in a quarter of L2 with their input.
    most_lines = line_groups[1] + bool(line_groups[2])
    line_bytes = ((width.out - 1) * width.copy_stride + width.kernel) * pitch * bytes_ * problem.depth.kernel
    budget = l2_bytes(cpu) // 4
    fitting = max(1, (budget // line_bytes - (height.kernel - 1) * height.dilation) // height.copy_stride)
    block_groups = max(1, min(line_groups[0], fitting // most_lines))
    block_groups = -(-line_groups[0] // -(-line_groups[0] // block_groups))
    padded = None
    if copied:
        lines = (block_groups * most_lines - 1) * height.copy_stride + (height.kernel - 1) * height.dilation + 1
        joins = problem.arithmetic.numbers if problem.input.element == problem.arithmetic.number else 1
        padded = PaddedLines(problem.depth, height, width, problem.pixel, pitch, lines, joins, problem.padding_value)
    return ConvScheme(tile, panels, line_groups, columns, block_groups, padded)


def _choose_tile(
    problem: ConvProblem, depth: int, lanes: int, registers: int
) -> tuple[Tile, tuple[int, int, int], tuple[int, int, int]]:
    """The cheapest tile, with the split of lines and of pixels along a line."""
    lines, pixels = problem.height.out, problem.width.out
    best: tuple[float, Tile, tuple[int, int, int], tuple[int, int, int]] | None = None
    for vectors in range(1, min(8, -(-problem.group_outputs // lanes)) + 1):
        for limit in range(1, (registers - 1 - vectors) // vectors + 1):
            if limit >= 2 * pixels:
                line_groups, columns = even_split(lines, limit // pixels), (1, pixels, 0)
            else:
                line_groups, columns = (lines, 1, 0), even_split(pixels, limit)
            cycles = 0.0
            for count, height in split_sizes(line_groups):
                for times, width in split_sizes(columns):
                    cycles += count * times * tile_cycles(height * width, vectors, 4 * lanes, depth)
            tile = Tile(limit, vectors, lanes)
            cycles *= -(-problem.group_outputs // tile.panel)
            if best is None or cycles < best[0]:
                best = (cycles, tile, line_groups, columns)
    assert best is not None
    return best[1:]


def split_sizes(split: tuple[int, int, int]) -> list[tuple[int, int]]:
    """(how many, size) of the parts of an even split."""
    parts, size, larger = split
    return [(count, extent) for count, extent in ((larger, size + 1), (parts - larger, size)) if count and extent]
