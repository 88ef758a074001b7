"""What the places of a piece of memory remember: the last write, and reads since."""

from __future__ import annotations

import numpy as np

from lowerkit.runtimes.cuda.simulated.scalar_types import Array

_PADDING = 64  # accesses of every width divide it


class Shadow:
    """The memory of bytes ``start`` to ``end`` of a store, a key (see ``keys``) for each granule.

    Reads have several columns, and a warp its own: where there are as many columns as warps nothing is forgotten;
    where there are fewer, a read may hide an older one of another warp that has the same column.

    Attributes:
        shared: whether it is shared memory, which the warps of one block alone can meet in.
        name: what messages call the piece; ``base`` is the byte that they count from.
        size: how many granules there are.
        last_write, last_read: the time of the last one anywhere in the piece, 0 for none.
    """

    def __init__(self, start: int, end: int, granule: int, columns: int, name: str, base: int, *, shared: bool) -> None:
        self.start, self.end, self.granule, self.columns = start, end, granule, columns
        self.name, self.base, self.shared = name, base, shared
        self.last_write = self.last_read = 0
        self._origin = start // _PADDING * _PADDING
        self.size = -(-(end - self._origin) // _PADDING) * _PADDING // granule
        self._writes: Array | None = None  # made when they are needed: most of memory meets nobody
        self._reads: Array | None = None

    def rows(self, offsets: Array, width: int) -> tuple[Array, int]:
        """Returns the row of each access of ``width`` bytes, and how many granules a row has."""
        count = max(1, width // self.granule)
        return (offsets - self._origin) // (count * self.granule), count

    def byte(self, row: int, count: int, granule: int) -> int:
        """Returns which byte of the piece a granule of a row is."""
        return self._origin + (row * count + granule) * self.granule - self.base

    def writes(self, rows: Array, count: int) -> Array:
        """Returns who wrote last, int64 [accesses, granules]."""
        if self._writes is None:
            return np.zeros((rows.size, count), np.int64)
        return self._writes.reshape(-1, count)[rows]

    def reads(self, rows: Array, count: int) -> Array:
        """Returns who read since the last write, int64 [accesses, granules * columns]."""
        if self._reads is None:
            return np.zeros((rows.size, count), np.int64)
        columns = self._reads.reshape(self.columns, -1, count)[:, rows]
        return np.moveaxis(columns, 0, -1).reshape(rows.size, -1)

    def set_written(self, rows: Array, count: int, keys: Array) -> Array:
        """Remembers a write of each row; returns whose key stands there now, where several wrote one row."""
        if self._writes is None:
            self._writes = np.zeros(self.size, np.int64)
        view = self._writes.reshape(-1, count)
        view[rows] = keys[:, None]
        return view[:, 0][rows]

    def set_read(self, rows: Array, count: int, keys: Array, columns: Array) -> tuple[Array, Array]:
        """Remembers a read of each row; returns where, and whose key stands there now."""
        if self._reads is None:
            self._reads = np.zeros(self.columns * self.size, np.int64)
        view = self._reads.reshape(-1, count)
        places = columns * (self.size // count) + rows if self.columns > 1 else rows
        view[places] = keys[:, None]
        return places, view[:, 0][places]

    def replace_read(self, places: Array, count: int, keys: Array) -> None:
        """Puts other keys to places that :meth:`set_read` returned."""
        assert self._reads is not None, "something was read"
        self._reads.reshape(-1, count)[places] = keys[:, None]
