"""Shared memory of the blocks of a batch, and local memory of its threads: every owner has bytes of its own."""

from __future__ import annotations

import numpy as np

from lowerkit.runtimes.cuda.simulated.byte_store import BadAccess, ByteStore
from lowerkit.runtimes.cuda.simulated.device_memory import check_alignment
from lowerkit.runtimes.cuda.simulated.scalar_types import Array

# Where the two, and parameters, lie for generic addresses; each is 4 GiB wide.
LOCAL_BASE = 0x5000_0000_0000
SHARED_BASE = 0x6000_0000_0000
PARAMETER_BASE = 0x4000_0000_0000
WINDOW = 1 << 32
_STRIDE = 64


class BlockMemory:
    """``size`` bytes for each of ``owners``; addresses count from 0 for each of them."""

    def __init__(self, space: str, owners: int, size: int, track_written: bool) -> None:
        """``space`` is what messages call it: shared or local."""
        self._space = space
        self._size = size
        self._stride = -(-size // _STRIDE) * _STRIDE
        self.store = ByteStore(owners * self._stride, track_written)

    def offsets(self, addresses: Array, owners: Array, width: int) -> Array:
        """Returns where accesses of ``width`` bytes lie in :attr:`store`.

        Args:
            addresses: int64.
            owners: int64, the number of the owner of each access; broadcasts against ``addresses``.
            width: bytes, a power of two.

        Raises:
            BadAccess: an access is not aligned, or outside.
        """
        check_alignment(addresses, width)
        if int(addresses.min()) < 0 or int(addresses.max()) > self._size - width:
            bad = (addresses < 0) | (addresses > self._size - width)
            owner = "block" if self._space == "shared" else "thread"
            raise BadAccess(f"outside of the {self._size} bytes of {self._space} memory of the {owner}", bad)
        return np.asarray(addresses + owners * self._stride)
