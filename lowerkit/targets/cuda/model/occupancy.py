"""How many blocks of a kernel an SM holds, and in how many waves a grid runs.

Granularities are those of compute capability 8.0 and later: registers are dealt out to warps by 256, warps by four,
shared memory by 128 bytes, of which each block has 1 KiB for the system.
"""

from __future__ import annotations

import msgspec

from lowerkit.targets.cuda.model.cards import Card

_REGISTER_UNIT = 256
_WARP_UNIT = 4
_SHARED_UNIT = 128
_SYSTEM_SHARED = 1 << 10


class Occupancy(msgspec.Struct, frozen=True):
    """How a grid fills a card.

    Attributes:
        resident: blocks that an SM holds at a time; 0 where not even one fits.
        share: warps that it then has, of those that it could have.
        waves: blocks of the grid over those that the card holds at a time.
        tail: share of the time of whole waves in which blocks of the grid run: ``waves / ceil(waves)``.
        limit: what ends the number of blocks: ``registers``, ``shared``, ``warps`` or ``blocks``.
    """

    resident: int
    share: float
    waves: float
    tail: float
    limit: str


def occupancy(card: Card, blocks: int, threads: int, registers: int, shared: int) -> Occupancy:
    """Returns how a grid fills a card.

    Args:
        card: it.
        blocks: of the grid.
        threads: of a block.
        registers: of a thread; 0 where they are not known, which then are no limit.
        shared: bytes of a block, static and dynamic.
    """
    warps = -(-threads // 32)
    limits = {"warps": card.warps // warps, "blocks": card.blocks}
    if registers:
        by_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        limits["registers"] = card.registers // by_warp // _WARP_UNIT * _WARP_UNIT // warps
    allotted = -(-(shared + _SYSTEM_SHARED) // _SHARED_UNIT) * _SHARED_UNIT
    limits["shared"] = card.shared // allotted if shared <= card.block_shared else 0
    limit = min(limits, key=lambda name: limits[name])
    resident = limits[limit]
    waves = blocks / (resident * card.sms) if resident else 0.0
    whole = -(-blocks // (resident * card.sms)) if resident else 0
    return Occupancy(resident, resident * warps / card.warps, waves, waves / whole if whole else 0.0, limit)
