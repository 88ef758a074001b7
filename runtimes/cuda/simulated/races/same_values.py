"""Writes that change nothing: the value that is there already, and several threads that write one value."""

from __future__ import annotations

import numpy as np

from lowerkit.runtimes.cuda.simulated.byte_store import ByteStore
from lowerkit.runtimes.cuda.simulated.races.report import Meeting
from lowerkit.runtimes.cuda.simulated.scalar_types import Array


def of_other_values(
    hot: Meeting, store: ByteStore, offsets: Array, values: Array, width: int, count: int
) -> Meeting | None:
    """Leaves of writes those that change a byte of their granule.

    Args:
        hot: which writes of an instruction.
        store: holds what was there before.
        offsets, values: where each thread writes what, a row of values each.
        width: bytes of a write.
        count: granules of a write.
    """
    size = width // count
    places = offsets[hot.at] + hot.column * size
    old = store.data[places[:, None] + np.arange(size)]
    new = _bytes(values)[hot.at[:, None], (hot.column * size)[:, None] + np.arange(size)]
    changes = (old != new).any(1)
    return Meeting(hot.at[changes], hot.column[changes], hot.before[changes]) if changes.any() else None


def twins(rows: Array, values: Array | None) -> tuple[int, int] | None:
    """Returns two writes of one instruction that put different values (None: not known) to one row."""
    order = np.argsort(rows, kind="stable")
    same = rows[order][1:] == rows[order][:-1]
    if values is not None:
        sorted_values = _bytes(values[order])
        same &= (sorted_values[1:] != sorted_values[:-1]).any(1)
    if not same.any():
        return None
    first = int(np.argmax(same))
    return int(order[first]), int(order[first + 1])


def _bytes(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
