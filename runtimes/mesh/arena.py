"""Where the sessions of a group compute: memory that the ranks of a host reach, so that collectives copy less.

What lies there matters only while a run goes on, so all sessions of a group share one. It grows with the shapes of the
runs: all ranks grow at the same run, since they bind the same dims. Where ranks run programs of their own they need
different sizes, and all take the largest.
"""

from __future__ import annotations

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.runtimes import _native
from lowerkit.runtimes.collective.failures import CollectiveFault, RankDied
from lowerkit.runtimes.collective.group import Group

_PAGE = 4096


class MeshArena:
    """This rank's part. Memory of this process alone where no other rank shares the host, and in simulations.

    Attributes:
        address, size: of what there is.
        shared: how often it was memory that local ranks reach, each time another one.
    """

    def __init__(self) -> None:
        self.shared = 0
        self._private = _native.Memory(0)
        self.address = 0
        self.size = 0

    def reserve(self, group: Group, size: int) -> int:
        """Returns the address of at least ``size`` bytes; what they held is lost where they grow.

        All ranks of the group call it at the same places among its operations.

        Raises:
            CollectiveFault: LK8010, the ranks want different sizes; LK8008 to LK8012, as for any operation.
            ResourceError: LK7002, LK7004: out of memory; the group is aborted.
        """
        size = -(-size // _PAGE) * _PAGE
        if size > self.size:
            wanted = _sizes(group, size)
            if len(set(wanted)) > 1:
                shown = ", ".join(f"{count} at rank {rank}" for rank, count in enumerate(wanted))
                raise CollectiveFault(
                    "LK8010",
                    f"the ranks of group {group.name!r} need arenas of different sizes: {shown} bytes",
                    hint="all ranks run a program with inputs of the same shapes",
                )
            self._require(group, size)
        return self.address

    def reserve_most(self, group: Group, size: int) -> int:
        """Returns the address of at least as many bytes as any rank wants, as :meth:`reserve` does."""
        size = max(_sizes(group, -(-size // _PAGE) * _PAGE))
        if size > self.size:
            self._require(group, size)
        return self.address

    def _require(self, group: Group, size: int) -> None:
        try:
            self._grow(group, size)
        except BaseException as error:  # the others may have theirs: they would wait for this rank
            if not isinstance(error, RankDied):
                why = error.message if isinstance(error, LowerkitError) else repr(error)
                group.abort(f"rank {group.rank} has no arena of {size} bytes: {why}")
            raise

    def _grow(self, group: Group, size: int) -> None:
        self.address = self.size = 0
        if len(group.local_ranks) > 1:
            self.address = group.workspace(size)
            self.shared += 1
        else:
            self._private = _native.Memory(0)  # give the old one back first
            self._private = _native.Memory(size)
            self.address = self._private.address
        self.size = size


def _sizes(group: Group, size: int) -> list[int]:
    return [int(row[0]) for row in group.run(group.calls.all_gather(np.array([size], np.int64)))]


def arena_of(group: Group) -> MeshArena:
    """Returns the arena of a group, the same one for all of its sessions."""
    arena: MeshArena = group.companions.setdefault(MeshArena, MeshArena())
    return arena
