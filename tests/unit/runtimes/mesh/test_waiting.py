"""Whom a rank of a mesh waits for in the end: what the native side says, and what the others say in the store."""

from __future__ import annotations

import threading
import time

import pytest

from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.mesh import waiting
from lowerkit.runtimes.mesh.waiting import follow, waited_for
from tests.support.ranks import PATIENCE


@pytest.mark.parametrize(
    ("message", "rank"),
    [
        ("all_reduce #3 (sum, f32 x 384) of group 'w', rank 0: waited 1 s for rank 1; not arrived: rank 1, 2", 1),
        ("all_reduce #3 of group 'w', rank 0: waited 0.5 s for rank 2, which entered it but does not go on", 2),
        ("all_gather #2 of group 'w', rank 1: rank 0 has not sent within 1 s; rank 0 was last seen in #1", 0),
        ("all_gather #2, rank 1: rank 0 has not sent within 1 s; rank 0 waits for rank 3 in #2; rank 3 was", 3),
        ("receive: no rank has sent a message with tag 3 within 1 s", None),
    ],
)
def test_the_last_rank_that_a_group_waits_for(message: str, rank: int | None) -> None:
    assert waited_for(message) == rank


def test_waits_are_followed_to_the_rank_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 waits for 0, that one for 3, and 3, which says so a little later, for 1."""
    monkeypatch.setattr(waiting, "GRACE", 1.0)
    store, found = MemoryStore(), dict[int, list[int]]()

    def fail(rank: int, other: int, late: float) -> None:
        time.sleep(late)
        found[rank] = list(follow(store, "w", rank, other, 4))

    waits = [(2, 0, 0.0), (0, 3, 0.02), (3, 1, 0.1)]
    threads = [threading.Thread(target=fail, args=each) for each in waits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == {2: [0, 3, 1], 0: [3, 1], 3: [1]}


def test_a_circle_and_nonsense_in_the_store_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "GRACE", 0.01)
    store = MemoryStore()
    store.set("w/waits/1", b"2")
    store.set("w/waits/2", b"0")
    assert list(follow(store, "w", 0, 1, 3)) == [1, 2]
    store.set("w/waits/2", b"many")
    assert list(follow(store, "w", 0, 1, 3)) == [1, 2]
