"""Tiles of attention: which one its sizes get, and others that are worth measuring.

Nothing here is predicted: the tile is the largest whose registers do not overflow, cut where there are few queries.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from lowerkit.targets.cuda.model.cards import card_of


class AttentionTile(msgspec.Struct, frozen=True, tag="attention"):
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


class AttentionShape(msgspec.Struct, frozen=True, tag="attention"):
    """What the choice of a tile depends on.

    Attributes:
        element: of queries, keys and values.
        rows: how many queries a matrix has; keys likewise.
        outer: how many matrices there are.
        features: of keys or values, the larger number, a power of two.
        masked: whether there is a tensor for a mask.
    """

    element: str
    rows: int
    keys: int
    outer: int
    features: int
    masked: bool


class AttentionCandidate(msgspec.Struct, frozen=True):
    """A tile; ``seconds`` is 0, since none are predicted."""

    tile: AttentionTile
    seconds: float = 0.0


def power(size: int) -> int:
    """Returns the least power of two that is at least ``size`` and 16."""
    return max(16, 1 << (size - 1).bit_length())


def attention_tile(shape: AttentionShape, level: str) -> AttentionTile:
    """Returns the tile that the sizes get."""
    tile = _large_tile(shape.element, shape.features, shape.masked, level)
    height = tile.rows
    while height > 16 and (shape.rows <= height // 2 or (height > 64 and shape.outer * -(-shape.rows // height) < 132)):
        height //= 2
    length = min(tile.keys, power(shape.keys))
    if height >= 64:
        return msgspec.structs.replace(tile, rows=height, keys=length, warps=min(tile.warps, height // 16))
    # Warps that have no rows of their own share the keys, and the tile leaves registers for all features.
    if shape.element == "f32":
        return msgspec.structs.replace(tile, rows=height, keys=length, warps=4, lanes=64, again=height > 16)
    return AttentionTile(height, min(64 if shape.features <= 128 else 32, power(shape.keys)), 4, tile.stages)


def attention_shortlist(shape: AttentionShape, level: str) -> Sequence[AttentionCandidate]:
    """Returns the tile that the sizes get, then others of narrow types whose keys and values fit beside the queries."""
    first = attention_tile(shape, level)
    found = [first]
    if shape.element != "f32" and first.rows >= 64 and not first.again:
        for rows, keys, warps, stages in itertools.product((128, 64), (64, 128, 32), (4, 8), (2, 3, 4)):
            tile = msgspec.structs.replace(first, rows=rows, keys=keys, warps=min(warps, rows // 16), stages=stages)
            held = 2 * shape.features * (rows + 2 * stages * keys)
            if held <= card_of(level).block_shared and rows < 2 * shape.rows and keys < 2 * shape.keys:
                found.append(tile)
    return [AttentionCandidate(tile) for tile in dict.fromkeys(found)]


def attention_fits(shape: AttentionShape, tile: AttentionTile, level: str) -> bool:
    """Returns whether a tile is one of :func:`attention_shortlist`."""
    known = shape.element in ("f32", "f16", "bf16") and min(shape.rows, shape.keys, shape.outer, shape.features) >= 1
    return known and any(each.tile == tile for each in attention_shortlist(shape, level))


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
