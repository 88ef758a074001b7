"""Whom a rank of a mesh waits for in the end, where those that it waited for waited themselves, along another axis.

A group knows who waits for whom in it, and nothing of the others: a rank that shares no group with one that has stopped
waits for a rank that does. All of them began to wait at about the same time, and come to the end of their patience
together. So a rank that does says in the store for whom it waited, and looks for a moment whether that one says so too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.rendezvous.store import Store

GRACE = 0.5
"""Seconds that a rank whose patience is over gives each other one to say for whom it waits."""

_WAITED = re.compile(r"\bwaited [^;:]* for rank (\d+)|\brank (\d+) has not |\bwaits for rank (\d+) in #")


def waited_for(message: str) -> int | None:
    """Returns the rank that an operation waited for until its time was over, by what the native side says of it.

    Within a group that side follows those who wait for each other itself, and names the last of them last.
    """
    named = [number for match in _WAITED.finditer(message) for number in match.groups() if number]
    return int(named[-1]) if named else None


def follow(store: Store, prefix: str, rank: int, other: int, size: int) -> Sequence[int]:
    """Says that ``rank`` waits for ``other``; returns that one, for whom it waits itself, and so on to the last.

    Args:
        store: reached by all ranks.
        prefix: of the keys: one for each mesh that fails.
        rank, other: of the mesh.
        size: its number of ranks.
    """
    chain = [other]
    with suppress(LowerkitError, OSError):  # what is known so far is what can be told
        store.set(f"{prefix}/waits/{rank}", str(other).encode())
        while True:
            try:
                said = store.get(f"{prefix}/waits/{chain[-1]}", GRACE)
            except TimeoutError:
                break
            following = int(said) if said.isdigit() else size
            if following >= size or following == rank or following in chain:
                break  # no rank, or a circle: nobody is at its end
            chain.append(following)
    return chain
