"""What ranks start with is compared before they connect: every rank names what differs, and who did not come."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.failures import CollectiveFault
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.mesh import agreement as agreement_module
from lowerkit.runtimes.mesh.agreement import RankStart, agreement
from tests.support.ranks import PATIENCE, run_ranks

OWN = RankStart("a.lk", "0123456789abcdef" * 4, "main", "cpu:x86-64-v3", "tp=3", 3, "0.1.0")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks wait less for one that may take the place of another."""
    monkeypatch.setattr(agreement_module, "SETTLE_SECONDS", 0.2)


def meet(starts: list[RankStart], seconds: float = 20.0, present: tuple[int, ...] | None = None) -> list[Any]:
    """Lets ranks with these lines meet; returns by rank None, or what was raised."""
    store = MemoryStore()
    together = threading.Barrier(len(starts) if present is None else len(present))

    def run(rank: int) -> None:
        if present is not None and rank not in present:
            return
        with agreement(store, "mesh", rank, starts[rank], seconds):
            together.wait(PATIENCE)

    outcomes = run_ranks(len(starts), run)
    assert store.keys() == []
    return outcomes


def test_equal_ranks_go_on_together() -> None:
    assert meet([OWN] * 3) == [None] * 3


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("change", "theirs", "ours"),
    [
        (
            {"content_id": "f" * 64, "artifact": "b.lk"},
            "b.lk (content id ffffffffffff)",
            "a.lk (content id 0123456789ab)",
        ),
        ({"program": "decode"}, "decode for cpu:x86-64-v3", "main for cpu:x86-64-v3"),
        ({"target": "cpu:x86-64-v4"}, "main for cpu:x86-64-v4", "main for cpu:x86-64-v3"),
        ({"mesh": "tp=2"}, "mesh tp=2", "tp=3"),
        ({"size": 2}, "one of 2", "one of 3"),
        ({"version": "0.2.0"}, "0.2.0", "0.1.0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_rank_with_something_else_is_named_by_all(change: dict[str, Any], theirs: str, ours: str) -> None:
    other = replace(OWN, **change)
    outcomes = meet([OWN, other, OWN])
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, CollectiveFault) and outcome.code == "LK8022", outcome
        text = outcome.render()
        assert f"rank {rank}: " in text and theirs in text and ours in text, text
        for named in (0,) if rank == 1 else (1,):  # each rank names those that differ from it
            assert f"rank {named} " in text, text
        assert ("rank 2 " in text) == (rank == 1 and "size" not in change)


@pytest.mark.usefixtures("soon")
def test_every_difference_is_named() -> None:
    other = replace(OWN, content_id="f" * 64, mesh="tp=4", version="0.2.0")
    (outcome, *_) = meet([OWN, other, OWN])
    assert isinstance(outcome, LowerkitError)
    text = outcome.render()
    assert "content id" in text and "tp=4" in text and "0.2.0" in text


def test_ranks_that_do_not_come_are_named() -> None:
    outcomes = meet([OWN] * 3, 0.5, present=(1,))
    assert isinstance(outcomes[1], CollectiveFault) and outcomes[1].code == "LK8007"
    assert "ranks 0, 2 of 3 did not come within 0.5 s" in str(outcomes[1])


def test_a_line_of_a_dead_rank_gives_way_to_that_of_a_new_one() -> None:
    store = MemoryStore()
    store.set("lowerkit/mesh/start/1", replace(OWN, size=2, content_id="f" * 64).to_bytes())
    met = threading.Barrier(2)

    def run(rank: int) -> None:
        if rank == 1:
            late.wait(PATIENCE)
        with agreement(store, "mesh", rank, replace(OWN, size=2), 20.0):
            met.wait(PATIENCE)

    late = threading.Event()
    timer = threading.Timer(0.3, late.set)
    timer.start()
    assert run_ranks(2, run) == [None, None]


def test_foreign_bytes_are_refused() -> None:
    store = MemoryStore()
    store.set("lowerkit/mesh/start/1", b'{"artifact": 7}')
    with pytest.raises(CollectiveFault, match="rank 1 published") as caught, agreement(store, "mesh", 0, OWN, 5.0):
        pass
    assert caught.value.code == "LK8007"
