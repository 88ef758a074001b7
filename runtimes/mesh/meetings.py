"""Meetings of all ranks of a mesh: each says what it is about to do, and hears what the others are.

An engine that is not lowerkit's own may not see that ranks call different things: with other shapes it would mix up
what it is given, or end the process. So ranks meet before each run, in a group that is used for nothing else: a rank
that waits there meets nobody's collective by mistake.
"""

from __future__ import annotations

import numpy as np

from lowerkit.runtimes.collective.failures import CollectiveFault
from lowerkit.runtimes.collective.group import Group

_BYTES = 512


class Meetings:
    """Those of one group. All of its ranks make it, and meet as often.

    Attributes:
        sessions: how many sessions of the group have met here.
    """

    def __init__(self, world: Group) -> None:
        self.sessions = 0
        self._world = world
        self._group = world.subgroup(f"{world.name}/meetings", range(world.size))

    def meet(self, text: str) -> None:
        """Returns when all ranks are here with the same text.

        Args:
            text: what this rank is about to do; its first 512 bytes count.

        Raises:
            CollectiveFault: LK8010, another rank has another text; LK8008, LK8009, LK8011, a rank does not come.
        """
        own = np.zeros(_BYTES, np.uint8)
        data = text.encode()[:_BYTES]
        own[: len(data)] = np.frombuffer(data, np.uint8)
        rows = self._group.run(self._group.calls.all_gather(own))
        for rank, row in enumerate(rows):
            if not np.array_equal(row, own):
                theirs = row.tobytes().rstrip(b"\0").decode(errors="replace")
                raise CollectiveFault(
                    "LK8010",
                    f"group {self._world.name!r}, rank {self._world.rank}: rank {rank} {theirs}, this rank {text}",
                    hint="all ranks make the same calls, with inputs of the same shapes",
                )


def meetings_of(world: Group) -> Meetings:
    """Returns the meetings of a group, the same for all of its sessions.

    Raises:
        CollectiveFault: LK8007, not all ranks came to make them; LK8011, the group was closed.
    """
    if Meetings not in world.companions:
        world.companions[Meetings] = Meetings(world)
    return world.companions[Meetings]
