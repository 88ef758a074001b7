"""Stores: values, deadlines, and races that exactly one rank wins."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from lowerkit.errors import UsageError
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore, MemoryStore, Store
from tests.support.ranks import PATIENCE, succeed


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DirectoryStore(tmp_path / "store")


def test_values_are_set_over_and_deleted(store: Store) -> None:
    store.set("a/b", b"one")
    store.set("a/b", b"two\0")
    assert store.get("a/b", 0.0) == b"two\0"
    assert store.delete("a/b")
    assert not store.delete("a/b")
    with pytest.raises(TimeoutError, match="a/b"):
        store.get("a/b", 0.0)


def test_get_waits_for_another_rank(store: Store) -> None:
    timer = threading.Timer(0.1, store.set, ("late", b"here"))
    timer.start()
    assert store.get("late", PATIENCE) == b"here"
    timer.join()


def test_get_ends_at_its_deadline(store: Store) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        store.get("never", 0.2)
    assert 0.2 <= time.monotonic() - start < PATIENCE


def test_compare_set_returns_what_stands(store: Store) -> None:
    assert store.compare_set("k", b"x", b"y") == b""
    assert store.compare_set("k", b"", b"one") == b"one"
    assert store.compare_set("k", b"", b"two") == b"one"
    assert store.compare_set("k", b"one", b"two") == b"two"


def test_one_rank_wins_a_race(store: Store) -> None:
    won = succeed(8, lambda rank: store.compare_set("winner", b"", str(rank).encode()))
    assert len(set(won)) == 1
    assert store.get("winner", 0.0) == won[0]


def test_two_stores_of_one_folder_see_each_other_and_leave_only_values(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    DirectoryStore(folder).set("k", b"v")
    assert DirectoryStore(folder).get("k", 0.0) == b"v"
    assert len(list(folder.iterdir())) == 1
    assert folder.stat().st_mode & 0o777 == 0o700


def test_folders_that_others_can_enter_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(UsageError, match=r"LK1010.*mode 755"):
        DirectoryStore(folder)
