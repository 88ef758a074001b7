"""Who accessed a place, and when, in 64 bits: what a place remembers.

From the lowest bit: 32 bits of time, 6 of the lane (32: several lanes of the warp), 24 of the warp in the launch, and
one that says whether the access was a strong one: atomic, relaxed, volatile, acquire or release. 0 is nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.simulated.scalar_types import Array

TIME = (1 << 32) - 1
SEVERAL = 32
STRONG = 1 << 62
MOST_WARPS = 1 << 24
_LANE, _WARP = 32, 38


def keys_of(warps: Array, lanes: Array) -> Array:
    """Returns the keys of threads at time 0, int64."""
    return warps << _WARP | lanes << _LANE


def times(keys: Array) -> Array:
    """Returns the times of keys."""
    return keys & TIME


def lanes(keys: Array) -> Array:
    """Returns the lanes of keys, 32 for several."""
    return keys >> _LANE & 63


def warps(keys: Array) -> Array:
    """Returns the warps of keys in the launch."""
    return keys >> _WARP & (MOST_WARPS - 1)


def of_whole_warps(keys: Array) -> Array:
    """Returns keys that name several lanes."""
    return keys & ~np.int64(63 << _LANE) | np.int64(SEVERAL << _LANE)


@dataclass(frozen=True)
class Order:
    """What an access says of its order.

    Attributes:
        strong: whether it may meet other strong accesses without an order.
        acquires, releases: whether it takes part in ordering others.
        block_only: whether that holds within a block alone (``.cta``).
    """

    strong: bool = False
    acquires: bool = False
    releases: bool = False
    block_only: bool = False


WEAK = Order()
