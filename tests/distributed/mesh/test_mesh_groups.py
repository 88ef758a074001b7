"""Programs for a mesh in ranks that share memory or connections: numbers, the arena they compute in, and its growth."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import LowerkitError, UsageError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.collective.failures import CollectiveFault
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.runtimes.mesh.arena import arena_of
from lowerkit.runtimes.session import Session, load
from tests.support.mesh.collective_programs import (
    CALLS,
    Array,
    every_dtype,
    expected,
    one_collective,
    program_name,
    random_inputs,
    run_until_it_fails,
    same_bits,
    write_collectives,
    write_programs,
)
from tests.support.ranks import PATIENCE, run_ranks, succeed
from tests.support.suite.randomness import RANDOM

pytestmark = pytest.mark.usefixtures("few_objects")

TOKEN = b"t" * 32


def with_groups(function: Callable[[Group], Any], ranks: int, *, shared_memory: bool = True) -> list[Any]:
    """Runs a function of a group on each rank."""
    store, options = MemoryStore(), RendezvousOptions(TOKEN, shared_memory=shared_memory, timeout=PATIENCE)

    def run(rank: int) -> Any:
        with Group.join(store, "world", rank, ranks, options, timeout=PATIENCE) as group:
            return function(group)

    return succeed(ranks, run)


@pytest.mark.parametrize(("operation", "reduction"), CALLS, ids=map("-".join, CALLS))
@pytest.mark.parametrize(("ranks", "shared_memory"), [(2, True), (3, True), (2, False), (3, False)])
def test_every_collective_gives_what_numpy_gives(
    ranks: int, shared_memory: bool, operation: str, reduction: str, tmp_path: Path
) -> None:
    artifact = open_artifact(write_collectives(tmp_path, operation, reduction, ranks))
    cases = list(every_dtype(operation, reduction, ranks, [0, 13, 1001]))
    for dtype in ("f32", "i8"):  # beyond what is exchanged in one piece
        name = program_name(operation, reduction, dtype, behind=dtype == "i8")
        cases.append((name, random_inputs(operation, dtype, ranks, 300_007)))

    def run(group: Group) -> list[list[Array]]:
        sessions = {
            name: Session(artifact, 1, "structure", None, name, None, group) for name in {name for name, _ in cases}
        }
        return [sessions[name].run(inputs[group.rank]) for name, inputs in cases]

    results = with_groups(run, ranks, shared_memory=shared_memory)
    for number, (name, inputs) in enumerate(cases):
        for rank, wanted in enumerate(expected(operation, reduction, inputs)):
            y, z = results[rank][number]
            assert same_bits(y, wanted), (name, rank)
            assert same_bits(z, inputs[rank]), (name, rank)
    artifact.close()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("count", [5, 700, 300_011])
def test_all_ranks_hold_the_same_bits(count: int, dtype: str, tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", dtype, 3, behind=True)])
    data = [RANDOM.standard_normal(count).astype(numpy_dtype(dtype)) for _ in range(3)]
    first, *others = with_groups(lambda group: load(path, threads=1, group=group).run(data[group.rank])[0], 3)
    assert all(same_bits(first, other) for other in others)


def test_the_arena_grows_with_the_shapes_and_is_shared_by_sessions(tmp_path: Path) -> None:
    programs = [one_collective("all_reduce", "sum", dtype, 3, behind=True) for dtype in ("f32", "f64")]
    path = write_programs(tmp_path / "model.lk", programs)
    counts = [10, 200_000, 1000, 600_000, 0, 600_001]
    data = {count: RANDOM.integers(0, 9, (3, count)) for count in counts}

    def run(group: Group) -> list[tuple[int, int]]:
        sessions = [load(path, threads=1, group=group, program=program.name) for program in programs]
        seen: list[tuple[int, int]] = []
        for count in counts:
            for session, kind in zip(sessions, (np.float32, np.float64), strict=True):
                x = data[count][group.rank].astype(kind)
                y, z = session.run(x)
                np.testing.assert_array_equal(y, data[count].sum(0))
                np.testing.assert_array_equal(z, x)
                seen.append((arena_of(group).size, session.arena_size(x)))
        return seen

    first, *others = with_groups(run, 3)
    assert all(other == first for other in others)
    sizes = [size for size, _ in first]
    assert sizes == sorted(sizes) and len(set(sizes)) >= 5
    assert all(size >= needed for size, needed in first)
    assert sizes[-1] - first[-1][1] < 4096


def test_ranks_whose_shapes_differ_are_named_at_once(tmp_path: Path) -> None:
    """Rank 1 wants a larger arena, rank 0 runs its collective: neither waits for the end of its time."""
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 2, behind=False)])

    def run(group: Group) -> str:
        session = load(path, threads=1, group=group)
        session.run(np.ones(1000, np.float32))
        with pytest.raises(CollectiveFault) as error:
            session.run(np.ones(5000 if group.rank else 900, np.float32))
        assert error.value.code in ("LK8010", "LK8011")
        return error.value.message

    messages = with_groups(run, 2)
    assert any("all_gather" in message and "all_reduce" in message for message in messages)


def test_a_group_has_an_arena_of_its_user_or_of_its_sessions(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 2, behind=False)])

    def run(group: Group) -> None:
        color = group.split(0)
        assert color is not None
        with color:
            color.arena(4096)
            with pytest.raises(UsageError, match=r"LK1010.*has an arena: compiled programs need a group without one"):
                load(path, threads=1, group=color).run(np.ones(5, np.float32))
        assert load(path, threads=1, group=group).run(np.ones(5, np.float32))[0].tolist() == [2.0] * 5
        with pytest.raises(UsageError, match=r"LK1010.*or sessions of compiled programs that have one"):
            group.arena(4096)

    with_groups(run, 2)


def test_a_group_that_is_closed_by_another_thread_while_its_session_runs(tmp_path: Path) -> None:
    """The run ends by itself, and its memory is there until it has."""
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 2, behind=True)])
    store, options = MemoryStore(), RendezvousOptions(TOKEN, timeout=PATIENCE)

    def run(rank: int) -> int:
        group = Group.join(store, "world", rank, 2, options, timeout=PATIENCE)
        session = load(path, threads=1, group=group)
        x = np.ones(50_000, np.float32)
        session.run(x)
        closing = threading.Timer(0.05 if rank else 0.2, group.close)
        closing.start()
        assert run_until_it_fails(session, x).code in ("LK8009", "LK8011")
        closing.join()
        for _ in range(2):
            with pytest.raises(CollectiveFault, match="LK8011"):
                session.run(x)
        return rank

    assert run_ranks(2, run) == [0, 1]


def test_sessions_outlive_their_group_and_the_other_way_round(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 2, behind=True)])
    kept: list[Session] = []

    def run(group: Group) -> None:
        for _ in range(3):
            session = load(path, threads=1, group=group)
            assert session.run(np.ones(5, np.float32))[0][0] == 2.0
            del session
            gc.collect()
        kept.append(load(path, threads=1, group=group))

    with_groups(run, 2)
    gc.collect()
    for session in kept:
        with pytest.raises(LowerkitError, match="LK8011"):
            session.run(np.ones(5, np.float32))
