"""Messages between the ranks along an axis, in one process: what comes, in which order, and what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.failures import CollectiveFault, RankDied
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.simulation.simulation import simulate
from lowerkit.runtimes.manifest import MeshAxis
from lowerkit.runtimes.mesh.places import place_of, ranks_along
from lowerkit.runtimes.session import load
from tests.support.mesh.collective_programs import write_programs
from tests.support.mesh.messages import one_message, ring
from tests.support.suite.randomness import RANDOM


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("reorder", [0.0, 0.5])
@pytest.mark.parametrize("count", [0, 3, 70_001])
@pytest.mark.parametrize("mesh", [{"pp": 2}, {"pp": 3, "tp": 2}, {"dp": 2, "pp": 4}], ids=str)
def test_messages_come_in_their_order(
    mesh: dict[str, int], count: int, reorder: float, behind: bool, tmp_path: Path
) -> None:
    path = write_programs(tmp_path / "model.lk", ring(mesh, "pp", count, behind=behind))
    axes = [MeshAxis(name, size) for name, size in mesh.items()]
    ranks = int(np.prod(list(mesh.values())))
    x = RANDOM.standard_normal((ranks, count)).astype(np.float32)

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        line, own = ranks_along(axes, "pp", group.rank), place_of(axes, group.rank)["pp"]
        for turn in range(3):
            y, z = session.run(x[group.rank] + turn)
            np.testing.assert_array_equal(y, x[line[own - 1]] + turn)
            np.testing.assert_array_equal(z, x[line[own - 2]] + turn)

    with simulate(ranks, latency=1e-5, reorder=reorder, seed=7, patience=3600.0) as simulation:
        for outcome in simulation.run(run):
            assert outcome is None, outcome


def fails(path: Path, ranks: int, **rules: Any) -> list[Any]:
    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        for _ in range(20):
            session.run(np.ones(1, np.float32))

    with simulate(ranks, patience=3600.0, **rules) as simulation:
        return simulation.run(run)


@pytest.mark.parametrize(("sent", "expected"), [(8, 16), (16, 8), (0, 4), (4, 0)])
def test_a_message_of_another_size_is_refused(sent: int, expected: int, tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", one_message({"dp": 2, "pp": 2}, "pp", sent, expected))
    outcomes = fails(path, 4)
    assert {rank for rank in (1, 3) if isinstance(outcomes[rank], LowerkitError)} == {1, 3}
    assert isinstance(outcomes[1], CollectiveFault) and outcomes[1].code in ("LK8010", "LK8011")
    texts = [str(outcome) for outcome in outcomes]
    named = [rank for rank in (1, 3) if f"{sent} " in texts[rank] and f"{expected}" in texts[rank]]
    assert named, texts
    for rank in named:
        assert f"at rank {rank} (dp={rank // 2},pp=1)" in texts[rank]
        assert f"rank {rank - 1} (dp={rank // 2},pp=0)" in texts[rank]
        assert "model.py:9" in texts[rank] and "receive@0" in texts[rank]


def test_a_message_of_another_dtype_is_refused(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", one_message({"pp": 2}, "pp", 8, 8, ("i32", "f32")))
    outcomes = fails(path, 2)
    assert isinstance(outcomes[1], CollectiveFault), outcomes
    assert outcomes[1].code == "LK8010" and "i32" in outcomes[1].message and "f32" in outcomes[1].message


def test_a_rank_that_sends_nothing_is_named_after_the_deadline(tmp_path: Path) -> None:
    silent, waiting = one_message({"pp": 2}, "pp", 8, 8)
    programs = [replace(silent, steps=silent.steps[1:]), waiting]
    outcomes = fails(write_programs(tmp_path / "model.lk", programs), 2, timeout=2.0)
    failure = outcomes[1]
    assert isinstance(failure, CollectiveFault), outcomes
    assert failure.code in ("LK8008", "LK8009") and "rank 0" in failure.message and failure.location == "model.py:9"


@pytest.mark.parametrize("messages", [0, 2, 7])
def test_a_rank_that_dies_is_named(messages: int, tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", ring({"tp": 2, "pp": 3}, "pp", 1, behind=True))
    outcomes = fails(path, 6, death={4: messages})
    assert isinstance(outcomes[4], RankDied)
    line = [outcomes[rank] for rank in (3, 5)]
    for failure in line:
        assert isinstance(failure, CollectiveFault) and "rank 4 (tp=1,pp=1)" in failure.message, outcomes
