"""Messages between ranks that share memory or connections, and between processes: numbers, and a rank that ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.collective.failures import CollectiveFault
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.session import Session, load
from tests.support.mesh.collective_programs import write_programs
from tests.support.mesh.messages import endless, one_message, ring
from tests.support.mesh.processes import SECONDS, await_end, await_steps, left_behind, rank_process, started
from tests.support.ranks import PATIENCE, run_ranks
from tests.support.suite.randomness import RANDOM

MESH = {"pp": 3, "tp": 2}


def in_ranks(ranks: int, function: Callable[[Group], Any], shared_memory: bool, timeout: float = PATIENCE) -> list[Any]:
    """Runs a function of a group on each rank; returns what it returned or raised."""
    store, options = MemoryStore(), RendezvousOptions(b"t" * 32, shared_memory=shared_memory, timeout=PATIENCE)

    def run(rank: int) -> Any:
        with Group.join(store, "world", rank, ranks, options, timeout=timeout) as group:
            return function(group)

    return run_ranks(ranks, run)


def failure_of(session: Session, columns: int) -> str:
    """Runs a session until that fails; returns with what."""
    try:
        for _ in range(100_000):
            session.run(np.ones(columns, np.float32))
    except CollectiveFault as fault:
        return str(fault)
    raise AssertionError("it does not fail")


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("count", [3, 200_003])
def test_messages_come_in_their_order(count: int, shared_memory: bool, behind: bool, tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", ring(MESH, "pp", count, behind=behind))
    x = RANDOM.standard_normal((6, count)).astype(np.float32)

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        for turn in range(4):
            y, z = session.run(x[group.rank] + turn)
            np.testing.assert_array_equal(y, x[(group.rank - 2) % 6] + turn)
            np.testing.assert_array_equal(z, x[(group.rank - 4) % 6] + turn)

    assert in_ranks(6, run, shared_memory) == [None] * 6


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize(("sent", "expected"), [(8, 16), (16, 8)])
def test_a_message_of_another_size_is_refused(sent: int, expected: int, shared_memory: bool, tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", one_message({"dp": 2, "pp": 2}, "pp", sent, expected))

    def run(group: Group) -> str:
        session = load(path, threads=1, group=group)
        return failure_of(session, 1)

    texts = in_ranks(4, run, shared_memory)
    named = [
        rank
        for rank in (1, 3)
        if "LK8010" in texts[rank]
        and f"at rank {rank} (dp={rank // 2},pp=1)" in texts[rank]
        and "receive@0" in texts[rank]
    ]
    assert named, texts
    assert all(f"rank {rank - 1} (dp={rank // 2},pp=0)" in texts[rank] for rank in named)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_rank_that_stops_is_named_after_the_deadline(shared_memory: bool, tmp_path: Path) -> None:
    """Rank 2 (pp=1,tp=0) does not run: those of its line wait for it, and the others for them or for nobody."""
    path = write_programs(tmp_path / "model.lk", ring(MESH, "pp", 5, behind=True))

    def run(group: Group) -> str:
        session = load(path, threads=1, group=group)
        return "" if group.rank == 2 else failure_of(session, 5)

    texts = in_ranks(6, run, shared_memory, timeout=3.0)
    for rank in (0, 4):
        assert "rank 2 (pp=1,tp=0)" in texts[rank] or "rank 4 (pp=2,tp=0)" in texts[rank], texts


def test_a_rank_that_is_killed_is_named_by_all_that_wait(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", endless(MESH, "pp", 7))
    with started(tmp_path, "run", path, "--nproc", 6, "--input", "x:7:f32") as process:
        await_steps(tmp_path, 6)
        os.kill(rank_process(tmp_path, 2), signal.SIGKILL)
        out, err = process.communicate(timeout=SECONDS)
        await_end(tmp_path)
    assert process.returncode == 8 and out == "" and left_behind(tmp_path) == []
    assert err.startswith("error[LK8009]: rank 2 (pp=1,tp=0) was killed by SIGKILL\n"), err
    details = [line for line in err.splitlines() if line.startswith("  - ")]
    assert len(details) >= 2, err
    assert all("rank 2 (pp=1,tp=0)" in line for line in details), err
