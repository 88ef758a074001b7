"""Asynchronous copies on their way: what they bring is there when the thread that began them has waited, not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lowerkit.runtimes.cuda.simulated.byte_store import ByteStore
from lowerkit.runtimes.cuda.simulated.scalar_types import Array


@dataclass(frozen=True)
class Copy:
    """Copies that one instruction began.

    Attributes:
        store, offsets: where they go, int64 [copies].
        threads: whose they are, int64 [copies], ascending.
        values: what they bring, [copies, words].
        arrives: is told of those that arrive, before they do.
    """

    store: ByteStore
    offsets: Array
    threads: Array
    values: Array
    arrives: Callable[[Copy], None]

    def split(self, mask: Array) -> tuple[Copy | None, Copy | None]:
        """Returns the copies of the threads of a mask (bool, flat), and those of the others; None for no copies."""
        mine = mask[self.threads]
        if mine.all():
            return self, None
        return (self._of(mine) if mine.any() else None), self._of(~mine)

    def _of(self, which: Array) -> Copy:
        return Copy(self.store, self.offsets[which], self.threads[which], self.values[which], self.arrives)


@dataclass(frozen=True)
class _Group:
    """Copies that threads (bool [blocks, width], None: all) have committed together."""

    members: Array | None
    copies: list[Copy]


@dataclass
class PendingCopies:
    """The copies of a batch that have not arrived."""

    _open: list[Copy] = field(default_factory=list[Copy])
    _groups: list[_Group] = field(default_factory=list[_Group])

    def begin(self, copy: Copy) -> None:
        """Begins copies: until they arrive, nothing is known of the bytes where they go."""
        copy.store.forget_at(copy.offsets, copy.values.shape[1] * copy.values.dtype.itemsize)
        self._open.append(copy)

    def commit(self, active: Array | None) -> None:
        """Makes one group of what the active threads (None: all) have begun since their last group."""
        mine, self._open = _divided(self._open, active)
        self._groups.append(_Group(active, mine))

    def wait(self, active: Array | None, keep: int) -> None:
        """Lets the copies of the active threads arrive, all but those of each thread's ``keep`` latest groups."""
        later: Array | int = 0  # how many groups each thread has committed from here on
        arrived: list[Copy] = []
        left: list[_Group] = []
        for group in reversed(self._groups):
            later = later + (1 if group.members is None else group.members.astype(np.int64))
            done = later > keep
            if active is not None:
                done = active & done
            mine, rest = _divided(group.copies, done)
            arrived[:0] = mine
            stays = not done if isinstance(done, bool) else not (done | ~_mask(group.members)).all()
            if rest or stays:
                left.append(_Group(group.members, rest))
        self._groups = left[::-1]
        _put(arrived)

    def wait_for_all(self, active: Array | None) -> None:
        """Lets all copies of the active threads arrive, those in no group too."""
        self.wait(active, 0)
        mine, self._open = _divided(self._open, active)
        _put(mine)


def _put(copies: list[Copy]) -> None:
    for copy in copies:
        copy.arrives(copy)
        copy.store.store(copy.offsets, copy.values)


def _mask(members: Array | None) -> Array:
    return np.ones((1, 1), np.bool_) if members is None else members


def _divided(copies: list[Copy], mask: Array | bool | None) -> tuple[list[Copy], list[Copy]]:
    """Returns the copies of the threads of a mask (True or None: all, False: none), and those of the others."""
    if mask is None or mask is True:
        return copies, []
    if mask is False:
        return [], copies
    mine: list[Copy] = []
    others: list[Copy] = []
    for copy in copies:
        inside, outside = copy.split(mask.reshape(-1))
        mine += [] if inside is None else [inside]
        others += [] if outside is None else [outside]
    return mine, others
