"""Which tile attention gets, and over how many blocks the keys of a tile of queries are dealt out."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cuda.model.cards import card_of
from lowerkit.targets.plan import KernelExpr, expression

MOST_SPLITS = 32
_BLOCKS = 264  # two for each SM of a large card
_LEAST_KEYS = 256
_MANY = 4096


@dataclass(frozen=True)
class AttentionTile:
    """A tile of scores, and how a block works on it.

    Attributes:
        rows, keys: of the tile; powers of two, 16 at least.
        warps: of a block.
        stages: how many tiles of keys and values are loaded ahead.
        lanes: features are taken in runs of so many at most, a power of two.
        again: whether the queries are loaded again for each tile of keys, since registers do not hold them.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    lanes: int = 256
    again: bool = False


def power(size: int) -> int:
    """Returns the least power of two that is at least ``size`` and 16."""
    return max(16, 1 << (size - 1).bit_length())


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


def choose_tile(
    element: str, rows: KernelExpr, keys: KernelExpr, outer: KernelExpr, features: int, level: str
) -> AttentionTile:
    """Returns the tile.

    Args:
        element: of queries, keys and values.
        rows: how many queries a matrix has; keys likewise. Open extents count as many.
        outer: how many matrices there are.
        features: of keys or values, the larger number, rounded up to a power of two.
        level: such as ``sm_90``.
    """
    m, t, many = (size if isinstance(size, int) else _MANY for size in (rows, keys, outer))
    roomy = card_of(level).block_shared >= 160 << 10
    if element == "f32":
        tile = AttentionTile(64, 32 if features <= 128 else 16, 4, 2 if roomy else 1)
    elif features <= 64:
        tile = AttentionTile(128, 64, 4, 3)
    elif features <= 128:
        tile = AttentionTile(128, 64, 8, 3 if roomy else 2)
    else:
        tile = AttentionTile(64, 32, 4, 2)
    rows_of_tile = tile.rows
    while rows_of_tile > 16 and (m <= rows_of_tile // 2 or (rows_of_tile > 64 and many * -(-m // rows_of_tile) < 132)):
        rows_of_tile //= 2
    if rows_of_tile == tile.rows:
        return AttentionTile(tile.rows, min(tile.keys, power(t)), tile.warps, tile.stages)
    # Few rows: what is read of keys decides, so more of them are under way.
    wide = tile.keys if element == "f32" or features > 128 else 64
    warps = 4
    return AttentionTile(rows_of_tile, min(wide, power(t)), warps, tile.stages)


def count_splits(tiles: KernelExpr, keys: KernelExpr) -> KernelExpr:
    """Returns over how many blocks the keys are dealt out so that ``tiles`` of queries fill a card; 1 where they do."""
    room = expression("floordiv", _BLOCKS, expression("max", tiles, 1))
    useful = expression("ceildiv", keys, _LEAST_KEYS)
    return expression("max", expression("min", expression("min", room, useful), MOST_SPLITS), 1)
