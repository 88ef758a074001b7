"""The order of GEMM tasks: (batch, block, panel, tile), and where one task stands in it.

A block is a run of row tiles whose input stays in L2 (or in scratch) while the panels go by; inside a block the tiles
are innermost, so that a panel is read from L2 once it has come from memory. Thread ranges are contiguous in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cpu.text.kernel_text import Index, KernelText

__all__ = ["TaskPlace", "place_task", "tile_start"]


@dataclass(frozen=True)
class TaskPlace:
    """One task, decoded.

    Attributes:
        batch: which independent problem (image, matrix).
        block: number of the block within the batch.
        first_tile: first row tile of the block.
        block_tiles: row tiles of this block (the last one may have fewer).
        panel: column panel.
        in_block: row tile, counted from the first of the block.
        tile: row tile, counted from the first of the batch.
    """

    batch: Index
    block: Index
    first_tile: Index
    block_tiles: Index
    panel: Index
    in_block: Index
    tile: Index


def place_task(text: KernelText, task: Index, tiles: Index, panels: int, block_tiles: int, batched: bool) -> TaskPlace:
    """Decodes a task number. Divisions by constants become multiplications; a static last block needs no minimum."""
    per_batch = text.imul(tiles, panels)
    batch = text.idiv(task, per_batch) if batched else 0
    within = text.irem(task, per_batch) if batched else task
    block: Index = 0
    here: Index = tiles
    if not (isinstance(tiles, int) and tiles == block_tiles):
        block = text.idiv(within, block_tiles * panels)
        within = text.irem(within, block_tiles * panels)
        whole = isinstance(tiles, int) and tiles % block_tiles == 0
        here = block_tiles
        if not whole:
            here = text.imin(block_tiles, text.isub(tiles, text.imul(block, block_tiles)))
    panel = text.idiv(within, here) if panels > 1 else 0
    in_block = text.irem(within, here) if panels > 1 else within
    first = text.imul(block, block_tiles)
    return TaskPlace(batch, block, first, here, panel, in_block, text.iadd(first, in_block))


def tile_start(text: KernelText, tile: Index, size: Index, larger: Index) -> Index:
    """First row of a tile of an even split: the first ``larger`` tiles have one row more than ``size``."""
    extra = 0 if larger == 0 else text.imin(tile, larger)
    return text.iadd(text.imul(tile, size), extra)
