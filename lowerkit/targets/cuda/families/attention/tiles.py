"""Which tile attention gets, and over how many blocks the keys of a tile of queries are dealt out."""

from __future__ import annotations

from lowerkit.targets.cuda.model.attentions import AttentionShape, AttentionTile, attention_tile, power
from lowerkit.targets.cuda.model.measured_tiles import measured_tile
from lowerkit.targets.plan import KernelExpr, expression

MOST_SPLITS = 32
_BLOCKS = 264  # two for each SM of a large card
_LEAST_KEYS = 256
_MANY = 4096


def runs_of(count: int, most: int) -> list[tuple[int, int]]:
    """Returns features as runs, start and length, so that little is padded: 80 are 64 and 16.

    Args:
        count: of features.
        most: of a run, a power of two.
    """
    runs: list[tuple[int, int]] = []
    start = 0
    while start < count:
        left = min(count - start, most)
        run = left if power(left) * 7 <= left * 8 else 1 << (left.bit_length() - 1)
        runs.append((start, run))
        start += run
    return runs


def asked_attention(
    element: str, rows: KernelExpr, keys: KernelExpr, outer: KernelExpr, features: int, masked: bool
) -> AttentionShape:
    """Returns what a tile is chosen for: see :class:`AttentionShape`; open extents count as many."""
    m, t, many = (size if isinstance(size, int) else _MANY for size in (rows, keys, outer))
    return AttentionShape(element, m, t, many, features, masked)


def choose_tile(shape: AttentionShape, level: str) -> AttentionTile:
    """Returns the tile: one that was measured, else the one that its sizes get."""
    return measured_tile(shape, level) or attention_tile(shape, level)


def count_splits(tiles: KernelExpr, keys: KernelExpr) -> KernelExpr:
    """Returns over how many blocks the keys are dealt out so that ``tiles`` of queries fill a card; 1 where they do."""
    room = expression("floordiv", _BLOCKS, expression("max", tiles, 1))
    useful = expression("ceildiv", keys, _LEAST_KEYS)
    if isinstance(useful, int) and useful <= 1:
        return 1
    return expression("max", expression("min", expression("min", room, useful), MOST_SPLITS), 1)


__all__ = ["MOST_SPLITS", "AttentionTile", "asked_attention", "choose_tile", "count_splits", "power", "runs_of"]
