"""Bytes that many threads read and write at once, each at its own offset; and which of them were ever written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowerkit.runtimes.cuda.launch_buffer import StaleBytes
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, DType

# The largest access: rows of every width divide the padded size.
_PADDING = 64
# Memory that nothing has written: NaN as a float, -1 as an integer, so that a result made of it is seen.
GARBAGE = 0xFF


class BadAccess(Exception):
    """Some accesses of one instruction are not allowed. It never leaves the package: a KernelFault is made of it.

    Attributes:
        problem: what is wrong with the first of them, behind "at 0x...: ".
        bad: bool, which ones; in the shape of the offsets, or one that they broadcast to.
    """

    def __init__(self, problem: str, bad: Array) -> None:
        super().__init__(problem)
        self.problem = problem
        self.bad = bad


class ByteStore:
    """``size`` bytes.

    Attributes:
        data: uint8, padded.
    """

    def __init__(self, size: int, track_written: bool) -> None:
        padded = -(-size // _PADDING) * _PADDING
        self.size = size
        self.data: Array = np.full(padded, GARBAGE, np.uint8)
        self._written: Array | None = np.zeros(padded, np.uint8) if track_written else None

    def load(self, offsets: Array, dtype: DType, count: int) -> Array:
        """Returns ``count`` values of ``dtype`` at each offset: shape of ``offsets``, then ``count``.

        Args:
            offsets: int64, in bytes; inside, and multiples of what one access takes, which is a power of two.

        Raises:
            BadAccess: a byte was never written, where that is tracked.
        """
        width = dtype.itemsize * count
        rows = offsets >> (width.bit_length() - 1)
        if self._written is not None:
            self._check_written(self._written, rows, width)
        return self.data.view(dtype).reshape(-1, count)[rows]

    def store(self, offsets: Array, values: Array) -> None:
        """Writes ``values`` (shape of ``offsets``, then the count); of two at one offset the later one stays."""
        count = values.shape[-1]
        width = values.dtype.itemsize * count
        rows = offsets >> (width.bit_length() - 1)
        self.data.view(values.dtype).reshape(-1, count)[rows] = values
        if self._written is not None:
            self._written.reshape(-1, width)[rows] = 1

    def require_written(self, offsets: Array, width: int) -> None:
        """Checks that ``width`` bytes at each offset were written, where that is tracked.

        Raises:
            BadAccess: one was not.
        """
        if self._written is not None:
            self._check_written(self._written, offsets >> (width.bit_length() - 1), width)

    def mark_written(self, start: int, size: int) -> None:
        """Takes bytes that were put into :attr:`data` directly as written."""
        if self._written is not None:
            self._written[start : start + size] = 1

    def without(self, start: int, stale: Sequence[StaleBytes]) -> ByteStore:
        """Returns the same bytes, some of which must not be read.

        Args:
            start: the offset from which ``stale`` counts.
            stale: which ones.
        """
        return _StaleStore(self, start, stale) if stale else self

    def forget(self, start: int, size: int) -> None:
        """Makes bytes what memory is that nothing has written."""
        self.data[start : start + size] = GARBAGE
        if self._written is not None:
            self._written[start : start + size] = 0

    def forget_at(self, offsets: Array, width: int) -> None:
        """Makes ``width`` bytes at each offset what memory is that nothing has written."""
        rows = offsets >> (width.bit_length() - 1)
        self.data.reshape(-1, width)[rows] = GARBAGE
        if self._written is not None:
            self._written.reshape(-1, width)[rows] = 0

    @staticmethod
    def _check_written(written: Array, rows: Array, width: int) -> None:
        missing = (written.reshape(-1, width)[rows] == 0).any(-1)
        if missing.any():
            raise BadAccess("nothing has written there", missing)


class _StaleStore(ByteStore):
    """The bytes of another store, some of which hold what does not belong there."""

    def __init__(self, store: ByteStore, start: int, stale: Sequence[StaleBytes]) -> None:
        self.size, self.data, self._written = store.size, store.data, store._written
        self._start, self._stale = start, stale

    def load(self, offsets: Array, dtype: DType, count: int) -> Array:
        """See :meth:`ByteStore.load`.

        Raises:
            BadAccess: bytes hold another value.
        """
        self._check_fresh(offsets, dtype.itemsize * count)
        return super().load(offsets, dtype, count)

    def require_written(self, offsets: Array, width: int) -> None:
        """See :meth:`ByteStore.require_written`.

        Raises:
            BadAccess: bytes hold another value.
        """
        self._check_fresh(offsets, width)
        super().require_written(offsets, width)

    def _check_fresh(self, offsets: Array, width: int) -> None:
        for each in self._stale:
            bad = (offsets < self._start + each.end) & (offsets + width > self._start + each.start)
            if bad.any():
                raise BadAccess(f"it is {each.words}", bad)
