"""Who is left: survivors of a failure agree on the members of the next group, through the store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from lowerkit.runtimes.collective.failures import not_formed
from lowerkit.runtimes.collective.rendezvous.address_exchange import ranks_from_bytes
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from lowerkit.runtimes.collective.rendezvous.store import Store

_TURN = 0.02  # seconds for one rank before the next is asked for


def agree_on_survivors(
    store: Store,
    prefix: str,
    rank: int,
    size: int,
    dead: set[int],
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[int]:
    """Returns the ranks that go on, ascending; the same list on each of them.

    Each survivor says that it is there and whom it knows to be dead, and waits for the others, but not for those that
    it or one that is there knows to be dead: a rank that was only told of the failure may not know who died. The first
    one whose list is complete, or whose time is over, writes it down (``compare_set``: one list wins), and all use it.

    Args:
        store: reached by all ranks.
        prefix: of the keys; used once.
        rank: this rank in the group that failed.
        size: that group's size.
        dead: ranks that are known to be dead.
        timeout: seconds to wait for ranks of which nothing is known.
        clock: of those seconds.

    Raises:
        CollectiveFault: LK8007, the others went on without this rank, or what they wrote down is no list of ranks.
    """
    store.set(f"{prefix}/present/{rank}", json.dumps(sorted(dead)).encode())
    deadline = Deadline(timeout, clock)
    dead, present = set(dead), {rank}
    while missing := sorted(set(range(size)) - present - dead):
        for other in missing:
            try:
                said = store.get(f"{prefix}/present/{other}", min(_TURN, deadline.remaining()))
            except TimeoutError:
                continue
            present.add(other)
            dead.update(ranks_from_bytes("the list of ranks that are known to be dead", said, size))
        if deadline.expired():
            break
    decided = store.compare_set(f"{prefix}/members", b"", json.dumps(sorted(present)).encode())
    members = sorted(ranks_from_bytes("the list of ranks that are left", decided, size))
    if rank not in members:
        raise not_formed(
            f"rank {rank} came too late to shrink: ranks {members} went on without it",
            hint="a longer timeout of shrink() waits for slow ranks",
        )
    return members
