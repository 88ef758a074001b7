"""Who is left: survivors of a failure agree on the members of the next group, through the store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from lowerkit.runtimes.collective.deadline import Deadline
from lowerkit.runtimes.collective.failures import not_formed
from lowerkit.runtimes.collective.publication import ranks_from_bytes
from lowerkit.runtimes.collective.store import Store


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

    Each survivor says that it is there and waits for the others, but not for those that it knows to be dead. The first
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
    store.set(f"{prefix}/present/{rank}", b"1")
    deadline = Deadline(timeout, clock)
    present = [rank]
    for other in range(size):
        if other != rank and other not in dead:
            try:
                store.get(f"{prefix}/present/{other}", deadline.remaining())
                present.append(other)
            except TimeoutError:
                continue
    decided = store.compare_set(f"{prefix}/members", b"", json.dumps(sorted(present)).encode())
    members = sorted(ranks_from_bytes("the list of ranks that are left", decided, size))
    if rank not in members:
        raise not_formed(
            f"rank {rank} came too late to shrink: ranks {members} went on without it",
            hint="a longer timeout of shrink() waits for slow ranks",
        )
    return members
