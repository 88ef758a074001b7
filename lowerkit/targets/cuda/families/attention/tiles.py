"""Which tile attention gets, and over how many blocks the keys of a tile of queries are dealt out."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    element: str, rows: KernelExpr, keys: KernelExpr, outer: KernelExpr, features: int, masked: bool, level: str
) -> AttentionTile:
    """Returns the tile.

    Args:
        element: of queries, keys and values.
        rows: how many queries a matrix has; keys likewise. Open extents count as many.
        outer: how many matrices there are.
        features: of keys or values, the larger number, rounded up to a power of two.
        masked: whether there is a tensor for a mask.
        level: such as ``sm_90``.
    """
    m, t, many = (size if isinstance(size, int) else _MANY for size in (rows, keys, outer))
    tile = _large_tile(element, features, masked, level)
    height = tile.rows
    while height > 16 and (m <= height // 2 or (height > 64 and many * -(-m // height) < 132)):
        height //= 2
    length = min(tile.keys, power(t))
    if height >= 64:
        return replace(tile, rows=height, keys=length, warps=min(tile.warps, height // 16))
    # Warps that have no rows of their own share the keys, and the tile leaves registers for all features.
    if element == "f32":
        return replace(tile, rows=height, keys=length, warps=4, lanes=64, again=height > 16)
    return AttentionTile(height, min(64 if features <= 128 else 32, power(t)), 4, tile.stages)


def _large_tile(element: str, features: int, masked: bool, level: str) -> AttentionTile:
    """The tile for many queries: the largest whose registers do not overflow, as ptxas says for each level."""
    roomy = card_of(level).block_shared >= 160 << 10
    own_memory = level in ("sm_100", "sm_103")  # sums of tensor cores lie outside of registers
    if element == "f32":
        if features <= 64:
            return AttentionTile(64, 32, 4, 2, 32, again=True)
        if features <= 128:
            return AttentionTile(64, 32, 4, 2, 32, True) if own_memory else AttentionTile(64, 16, 4, 2, 16, True)
        return AttentionTile(64, 16, 4, 1, 32, again=True)
    if features <= 64:
        return AttentionTile(128, 64, 4 if level == "sm_90" or (not masked and level in ("sm_80", "sm_87")) else 8, 3)
    whole_warps = own_memory or level == "sm_90"  # products by four warps, operands in shared memory
    if features <= 128:
        return AttentionTile(128, 32 if masked and not whole_warps else 64, 8, 3 if roomy and not masked else 2)
    if whole_warps:
        return AttentionTile(64, 32, 4, 2, 128)
    return AttentionTile(64, 16, 4, 2, 64, again=True) if masked else AttentionTile(64, 16, 4, 2)


def count_splits(tiles: KernelExpr, keys: KernelExpr) -> KernelExpr:
    """Returns over how many blocks the keys are dealt out so that ``tiles`` of queries fill a card; 1 where they do."""
    room = expression("floordiv", _BLOCKS, expression("max", tiles, 1))
    useful = expression("ceildiv", keys, _LEAST_KEYS)
    if isinstance(useful, int) and useful <= 1:
        return 1
    return expression("max", expression("min", expression("min", room, useful), MOST_SPLITS), 1)
