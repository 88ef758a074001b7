"""All ranks of a program in one process: its outputs by rank, its golden values, and whose failure is raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lowerkit.artifact.golden import golden_entries
from lowerkit.artifact.writer import write_artifact
from lowerkit.errors import LowerkitError, RuntimeFault, UsageError
from lowerkit.runtimes.artifact_reader import Artifact, open_artifact
from lowerkit.runtimes.collective.failures import CollectiveFault, RankDied
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.simulation.simulation import simulate
from lowerkit.runtimes.manifest import (
    CHECK_KERNEL,
    GOLDEN_INPUTS_ENTRY,
    Buffer,
    CollectiveCall,
    GoldenSpec,
    IndexCheck,
    Manifest,
    ProgramSpec,
    Signature,
    Step,
    TensorSpec,
)
from lowerkit.runtimes.mesh.arena import MeshArena
from lowerkit.runtimes.mesh.simulated import first_failure, run_simulated
from lowerkit.runtimes.session import Session, load
from lowerkit.runtimes.verify import run_program, verify_artifact
from tests.support.handmade_code import f32, write_tanh_of_sum
from tests.support.mesh.collective_programs import (
    Array,
    collective,
    copy,
    mesh_program,
    one_collective,
    same_bits,
    write_programs,
)
from tests.support.suite.randomness import RANDOM

RANKS = 3
SUM = CollectiveCall("all_reduce", "tp", "f32")


def sharded_sum() -> ProgramSpec:
    """``y``: the sum of the ranks' parts of ``w``, different at each rank before; ``z = x``."""
    signature = Signature(inputs=[f32("x", 2)], outputs=[f32("y", 1001), f32("z", 2)])
    buffers = [
        Buffer("weight", 4004, weight="w", shard="tp"),
        Buffer("output", 4004, index=0),
        Buffer("input", 8, index=0),
        Buffer("output", 8, index=1),
    ]
    steps = [collective(0, 1, SUM, name="sum"), copy(2, 3)]
    return mesh_program(signature, buffers, steps, RANKS, golden=GoldenSpec("golden/y"))


def write_with_golden(path: Path, spoil: bool = False) -> Path:
    program = sharded_sum()
    w = RANDOM.standard_normal((RANKS, 1001)).astype(np.float32)

    def golden(artifact: Artifact) -> dict[str, bytes]:
        x = np.ones(2, np.float32)
        (first, *others) = run_program(artifact, program, [x], 2, None)
        assert len(others) == RANKS - 1
        assert all(same_bits(first[0], other[0]) for other in others)
        np.testing.assert_allclose(first[0], w.astype(np.float64).sum(0), rtol=1e-4, atol=1e-5)
        if spoil:
            first[0][17] += 1
        entries = golden_entries([x], {"golden/y": first})
        assert set(entries) == {GOLDEN_INPUTS_ENTRY, "golden/y"}
        return entries

    write_artifact(path, Manifest([program], features=["mesh"]), {}, {"w": w}, golden)
    return path


def test_golden_values_are_made_and_verified_in_simulation(tmp_path: Path) -> None:
    path = write_with_golden(tmp_path / "model.lk")
    for _ in range(3):
        report = verify_artifact(path, threads=2)
        check, _ = report.programs[0].golden
        assert report.passed and check.elements == 1001 and report.programs[0].comparison == "bitwise"


def test_golden_values_that_differ(tmp_path: Path) -> None:
    report = verify_artifact(write_with_golden(tmp_path / "model.lk", spoil=True))
    check, _ = report.programs[0].golden
    assert not report.passed and check.mismatches == 1


def test_a_mesh_without_golden_values_is_loaded_for_every_rank(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_gather", "sum", "i8", 2, behind=True)])
    report = verify_artifact(path)
    assert report.passed and {program.comparison for program in report.programs} == {"none"}


def test_outputs_by_rank(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("reduce_scatter", "sum", "i32", RANKS, behind=True)])
    x = RANDOM.integers(0, 100, (RANKS, 5)).astype(np.int32)
    results = run_simulated(path, [x], threads=1)
    assert [y.tolist() for y, _ in results] == [(RANKS * x[rank]).tolist() for rank in range(RANKS)]
    with pytest.raises(LowerkitError, match="LK8004"):
        run_simulated(path, [x[:1]])
    with pytest.raises(UsageError, match=r"LK8021.*plain.lk is for one rank"):
        run_simulated(write_tanh_of_sum(tmp_path / "plain.lk"), [x])


def looked_up(*, checked_first: bool) -> ProgramSpec:
    """Sums ``x`` over the ranks, and looks ``i`` up among 4 elements: before the sum, or between its two halves."""
    signature = Signature(inputs=[TensorSpec("i", "i64", [2]), f32("x", 6)], outputs=[f32("y", 6)])
    buffers = [
        Buffer("input", 16, index=0),
        Buffer("input", 24, index=1),
        Buffer("output", 24, index=0),
        Buffer("arena", 24),
    ]
    check = Step(CHECK_KERNEL, [0], check=IndexCheck("i64", [4], operator="aten.embedding"), location="m.py:4")
    start, done = (collective(1, 3, replace(SUM, phase=phase), location="m.py:5") for phase in ("start", "done"))
    steps = [check, start, done] if checked_first else [start, check, done]
    return mesh_program(signature, buffers, [*steps, copy(3, 2)], RANKS)


GOOD, BAD = np.array([0, 3]), np.array([1, 7])


@pytest.mark.parametrize("checked_first", [True, False])
def test_an_index_out_of_range_on_all_ranks_leaves_them_together(checked_first: bool, tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [looked_up(checked_first=checked_first)])
    x = [RANDOM.integers(0, 9, 6).astype(np.float32) for _ in range(RANKS)]

    def run(group: Group) -> list[Array]:
        session = load(path, threads=1, group=group)
        first = session.run(GOOD, x[group.rank])
        for _ in range(2):
            with pytest.raises(RuntimeFault, match=r"LK8015(.|\n)*no state has changed"):
                session.run(BAD, x[group.rank])
        np.testing.assert_array_equal(session.run(GOOD, x[group.rank])[0], first[0])
        return first

    with simulate(RANKS, patience=3600.0) as simulation:
        for outcome in simulation.run(run):
            assert not isinstance(outcome, BaseException), outcome
            np.testing.assert_array_equal(outcome[0], sum(x))


def test_an_index_out_of_range_on_one_rank_ends_the_group(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [looked_up(checked_first=True)])

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        session.run(GOOD, np.ones(6, np.float32))
        try:
            session.run(BAD if group.rank == 1 else GOOD, np.ones(6, np.float32))
        finally:
            with pytest.raises(CollectiveFault, match=r"LK8011\]: the run cannot begin at rank \d of tp=3"):
                session.run(GOOD, np.ones(6, np.float32))

    with simulate(RANKS, patience=3600.0) as simulation:
        outcomes = simulation.run(run)
    failure = first_failure(outcomes)
    assert failure is outcomes[1]
    assert isinstance(failure, RuntimeFault) and failure.code == "LK8015"
    assert "in a new group" in str(failure.hint)
    for rank in (0, 2):
        assert isinstance(outcomes[rank], CollectiveFault), outcomes[rank]


def test_an_index_out_of_range_on_one_rank_behind_all_collectives(tmp_path: Path) -> None:
    """The others need nothing of this rank any more, and the next run finds all at one place."""
    path = write_programs(tmp_path / "model.lk", [looked_up(checked_first=False)])

    def run(group: Group) -> list[Array]:
        session = load(path, threads=1, group=group)
        for _ in range(2):
            if group.rank != 1:
                session.run(GOOD, np.full(6, group.rank, np.float32))
                continue
            with pytest.raises(RuntimeFault, match=r"LK8015(.|\n)*no state has changed"):
                session.run(BAD, np.full(6, group.rank, np.float32))
        return session.run(GOOD, np.full(6, group.rank + 1, np.float32))

    with simulate(RANKS, patience=3600.0) as simulation:
        for outcome in simulation.run(run):
            assert not isinstance(outcome, BaseException), outcome
            assert outcome[0].tolist() == [6.0] * 6


@pytest.mark.parametrize("messages", range(8))
def test_a_rank_that_dies_is_named_by_the_others(messages: int, tmp_path: Path) -> None:
    program = one_collective("all_reduce", "sum", "f32", RANKS, behind=messages % 2 == 1)
    path = write_programs(tmp_path / "model.lk", [program])

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        try:
            for _ in range(20):
                session.run(np.ones(10_000, np.float32))
        finally:
            for _ in range(2):
                with pytest.raises((CollectiveFault, RankDied)) as error:
                    session.run(np.ones(10_000, np.float32))
                assert isinstance(error.value, RankDied) or error.value.code == "LK8011"

    with simulate(RANKS, patience=3600.0, death={1: messages}) as simulation:
        outcomes = simulation.run(run)
    assert isinstance(outcomes[1], RankDied)
    for rank in (0, 2):
        failure = outcomes[rank]
        assert isinstance(failure, CollectiveFault), failure
        assert f"at rank {rank} of tp=3" in failure.message or messages < 4, failure
        assert "rank 1" in failure.message
    survivor = first_failure([outcomes[0], outcomes[2]])
    assert isinstance(survivor, CollectiveFault) and survivor.code == "LK8009"


def test_ranks_with_inputs_of_other_shapes(tmp_path: Path) -> None:
    """The first run needs an arena of another size at each rank; later ones have room, and the collective differs."""
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", RANKS, behind=False)])

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        with pytest.raises(
            CollectiveFault, match=r"LK8010.*arenas of different sizes: 81920 at rank 0, 8192 at rank 1"
        ):
            session.run(np.ones(1000 if group.rank else 10_000, np.float32))
        session.run(np.ones(10_000, np.float32))
        session.run(np.ones(999 + group.rank, np.float32))

    with simulate(RANKS, patience=3600.0) as simulation:
        for outcome in simulation.run(run):
            assert isinstance(outcome, CollectiveFault)
            assert outcome.code in ("LK8010", "LK8011") and "all_reduce" in outcome.message


def test_a_group_that_is_closed_ends_its_sessions(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 1, behind=True)])
    with simulate(1) as simulation:
        (group,) = simulation.groups
        session = load(path, threads=1, group=group)
        assert session.run(np.ones(3, np.float32))[0].tolist() == [1, 1, 1]
        group.close()
        with pytest.raises(CollectiveFault, match="LK8011.*the group was closed on this rank"):
            session.run(np.ones(3, np.float32))
        with pytest.raises(CollectiveFault, match="LK8011"):
            load(path, threads=1, group=group)


def test_whose_failure_is_raised() -> None:
    own = RuntimeFault("LK8015", "an index")
    lost, aborted, differs = (CollectiveFault(code, "it") for code in ("LK8009", "LK8011", "LK8010"))
    died = RankDied("rank 1 died")
    cases: list[tuple[list[Any], BaseException]] = [
        ([1, aborted, own, lost], own),
        ([aborted, lost, differs, 1], differs),
        ([lost, died], died),
        ([aborted, aborted], aborted),
    ]
    for outcomes, wanted in cases:
        assert first_failure(outcomes) is wanted


def test_ranks_share_one_mapping(tmp_path: Path) -> None:
    path = write_with_golden(tmp_path / "model.lk")
    artifact = open_artifact(path)
    with simulate(RANKS) as simulation:
        sessions = [Session(artifact, 1, "structure", group=group) for group in simulation.groups]
        addresses = {session.weight("w").ctypes.data for session in sessions}
        assert len(addresses) == 1
    artifact.close()


def test_a_rank_without_memory_for_the_arena_ends_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", RANKS, behind=False)])
    grow = MeshArena._grow  # pyright: ignore[reportPrivateUsage]

    def refuses(arena: MeshArena, group: Group, size: int) -> None:
        if group.rank == 1:
            raise MemoryError("no pages")
        grow(arena, group, size)

    monkeypatch.setattr(MeshArena, "_grow", refuses)

    def run(group: Group) -> None:
        load(path, threads=1, group=group).run(np.ones(9, np.float32))

    with simulate(RANKS, patience=3600.0) as simulation:
        outcomes = simulation.run(run)
    failure = first_failure(outcomes)
    assert failure is outcomes[1]
    assert isinstance(failure, LowerkitError) and failure.code == "LK7002"
    for rank in (0, 2):
        other = outcomes[rank]
        assert isinstance(other, CollectiveFault), other
        assert "rank 1" in other.message
