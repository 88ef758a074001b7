"""What the warps of a batch know of each other: up to which time the accesses of one lie behind the other."""

from __future__ import annotations

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.scalar_types import Array


class BlockClocks:
    """Vector clocks of the warps of the blocks of a batch.

    Attributes:
        known: int64 [blocks, warps, warps]; ``known[b, w, u]`` is the time up to which warp ``w`` of block ``b`` knows
            the accesses of warp ``u``: they lie before everything that ``w`` does from now on.
        gathered: int64 [blocks, warps], when the lanes of a warp last ran an instruction together.
        floor: what every warp knows of every other of its block, and lanes of each other.
    """

    def __init__(self, batch: Batch) -> None:
        self.warps = batch.shape[1] // WARP
        self.known: Array = np.zeros((batch.blocks, self.warps, self.warps), np.int64)
        self.gathered: Array = np.zeros((batch.blocks, self.warps), np.int64)
        self.floor = 0
        self._shape = batch.blocks, self.warps, WARP

    def gather(self, active: Array | None, now: int) -> None:
        """The lanes of warps run an instruction together; ``active`` as in a batch."""
        if active is None:
            self.gathered[...] = now
        else:
            self.gathered[active.reshape(self._shape).any(-1)] = now
        if self.warps == 1:
            self.floor = int(self.gathered.min())

    def meet(self, active: Array | None, now: int) -> Array | None:
        """The warps of ``active`` threads meet at a barrier, in each block by itself.

        Returns:
            Which warps, bool [blocks, warps]; None for all.
        """
        if active is None:
            self.known[...] = now
            self.gathered[...] = now
            self.floor = now
            return None
        here: Array = np.logical_or.reduce(active.reshape(self._shape), -1)
        joined = np.where(here[:, :, None], self.known, 0).max(1)
        joined = np.where(here, now, joined)
        self.known = np.where(here[:, :, None], joined[:, None, :], self.known)
        self.gathered[here] = now
        self._lower()
        return here

    def snapshot(self, warps: Array, now: int) -> Array:
        """Returns what warps (numbers in the batch) know of their block, int64 [warps, warps of a block]."""
        rows = self.known.reshape(-1, self.warps)[warps]
        rows[np.arange(warps.size), warps % self.warps] = now
        return rows

    def learn(self, warps: Array, rows: Array) -> None:
        """Warps (numbers in the batch, each once) learn what ``rows`` say, int64 [warps, warps of a block]."""
        known = self.known.reshape(-1, self.warps)
        known[warps] = np.maximum(known[warps], rows)
        self._lower()

    def _lower(self) -> None:
        others = self.known.copy()
        numbers = np.arange(self.warps)
        others[:, numbers, numbers] = self.gathered
        self.floor = int(others.min())
