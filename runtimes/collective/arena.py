"""The arena of a group: memory that local ranks reach, given out as numpy arrays."""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.available_memory import available_bytes
from lowerkit.runtimes.collective.calls import Array
from lowerkit.runtimes.collective.failures import from_native, no_memory, usage
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.rendezvous import meet
from lowerkit.runtimes.collective.rendezvous.store import Store

_ALIGNMENT = 64
_PAGE = 4096


class Arena:
    """This rank's part of the arena. Arrays are given back when nothing refers to them any more.

    Ranks that allocate the same sizes in the same order have them at the same offsets.
    """

    def __init__(self, place: int | mmap.mmap, size: int) -> None:
        self._place = place  # an address of the group's, or memory of our own
        self._address = place if isinstance(place, int) else ctypes.addressof(ctypes.c_char.from_buffer(place))
        self._free: list[tuple[int, int]] = [(0, size)]
        self._used: dict[int, int] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.size = size

    @staticmethod
    def make(
        group: _collective.Group,
        store: Store,
        name: str,
        rank: int,
        local_ranks: Sequence[int],
        options: RendezvousOptions,
        size: int,
    ) -> Arena:
        """Makes the memory, passes it to the local ranks and attaches it; see :meth:`Group.arena`."""
        if size <= 0:
            raise usage(f"an arena of {size} bytes")
        size = -(-size // _PAGE) * _PAGE
        count = len(local_ranks)
        own = local_ranks.index(rank)
        if count == 1:
            # Nobody to share with: the arena is memory of this process.
            if (free := available_bytes()) < size:
                raise no_memory(f"an arena of {size} bytes is wanted and {free} are free")
            return Arena(mmap.mmap(-1, size), size)
        place = f"{name}/arena.{local_ranks[0]}"
        return Arena(share_memory(group, store, place, own, count, options, size), size)

    def empty(self, shape: Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """Returns an array of the arena, aligned to 64 bytes, with whatever was there before.

        Raises:
            ResourceError: LK7004, the arena is full.
        """
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        wanted = max(_ALIGNMENT, -(-count * kind.itemsize // _ALIGNMENT) * _ALIGNMENT)
        offset = self._take(wanted)
        memory = (ctypes.c_char * wanted).from_address(self._address + offset)
        weakref.finalize(memory, self._give_back, offset)
        return np.frombuffer(memoryview(memory), kind, count).reshape(tuple(shape))

    def close(self) -> None:
        """Gives nothing out any more.

        Raises:
            UsageError: LK1010, arrays are still in use.
        """
        with self._lock:
            if self._used:
                raise usage(
                    f"{len(self._used)} arrays of the arena are in use, {sum(self._used.values())} bytes",
                    hint="delete them before the group is closed: its memory goes with it",
                )
            self._closed = True

    def _take(self, wanted: int) -> int:
        with self._lock:
            if self._closed:
                raise usage("the arena is closed")
            for index, (offset, size) in enumerate(self._free):
                if size >= wanted:
                    rest = [(offset + wanted, size - wanted)] if size > wanted else []
                    self._free[index : index + 1] = rest
                    self._used[offset] = wanted
                    return offset
            used = sum(self._used.values())
        raise no_memory(f"the arena has {self.size} bytes, {used} are in use, and {wanted} in one piece are wanted")

    def _give_back(self, offset: int) -> None:
        with self._lock:
            pieces = sorted([*self._free, (offset, self._used.pop(offset))])
            merged = [pieces[0]]
            for start, size in pieces[1:]:
                last_start, last_size = merged[-1]
                if last_start + last_size == start:
                    merged[-1] = (last_start, last_size + size)
                else:
                    merged.append((start, size))
            self._free = merged


def share_memory(
    group: _collective.Group, store: Store, place: str, own: int, count: int, options: RendezvousOptions, size: int
) -> int:
    """Maps memory that the ``count`` local ranks reach, in the place of what they shared before.

    Args:
        group: the native side, which gets to know it.
        store: where they meet once more, under the name ``place``: the streams of the group are the native side's.
        place: see there.
        own: this rank's place among the local ranks.
        count: how many there are.
        options: how they reach each other.
        size: bytes of each rank.

    Returns:
        The address of this rank's part.

    Raises:
        ResourceError: LK7004, out of memory.
    """
    connections = meet(store, place, own, count, replace(options, shared_memory=True), lambda ranks: ranks * size)
    try:
        return group.attach_arena(connections.memory, size)
    except _collective.CollectiveError as error:
        raise from_native(*error.args) from error
    finally:
        connections.close()
