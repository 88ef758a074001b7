"""Meshes of several axes in processes and on the command line: numbers, places, and a rank that ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore, MemoryStore
from lowerkit.runtimes.manifest import JUMP_KERNEL, Step
from lowerkit.runtimes.mesh.arena import arena_of
from lowerkit.runtimes.mesh.ranks import join_mesh
from lowerkit.runtimes.session import load
from tests.support.mesh.processes import SECONDS, await_end, await_steps, finished, left_behind, rank_process, started
from tests.support.mesh.several_axes import (
    COLUMNS,
    at_once,
    by_place,
    expected,
    gathered,
    parts,
    write_axes,
    write_gathered,
)
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE, succeed
from tests.support.suite.randomness import RANDOM

MESH = {"dp": 2, "tp": 2}
BOTH = ("tp", "dp")


@pytest.mark.parametrize("shared_memory", [True, False])
def test_ranks_that_share_memory_or_connections(shared_memory: bool, tmp_path: Path) -> None:
    mesh = {"dp": 2, "pp": 1, "tp": 3}
    path = write_gathered(tmp_path / "model.lk", mesh, BOTH)
    store, options = MemoryStore(), RendezvousOptions(b"t" * 32, shared_memory=shared_memory, timeout=PATIENCE)

    def run(rank: int) -> Any:
        with Group.join(store, "world", rank, 6, options, timeout=PATIENCE) as group:
            session = load(path, threads=1, group=group)
            return [session.run(np.ones(1, np.float32))[0] for _ in range(3)]

    for results in succeed(6, run):
        for result in results:
            np.testing.assert_array_equal(result, expected(mesh, BOTH))


@pytest.mark.parametrize("shared_memory", [True, False])
def test_sums_along_all_axes_in_an_arena_that_grows(shared_memory: bool, tmp_path: Path) -> None:
    """Sums large enough to be made in place where ranks share memory, in the arena of all ranks."""
    mesh = {"dp": 2, "tp": 2}
    columns = {"small": 7, "main": 300_000, "large": 500_003}
    programs = [at_once(mesh, count, name=name) for name, count in columns.items()]
    path = write_axes(tmp_path / "model.lk", programs)
    store, options = MemoryStore(), RendezvousOptions(b"t" * 32, shared_memory=shared_memory, timeout=PATIENCE)
    x = {name: RANDOM.integers(0, 99, (2, 2, count)).astype(np.float32) for name, count in columns.items()}

    def run(rank: int) -> list[int]:
        own = divmod(rank, 2)
        with Group.join(store, "world", rank, 4, options, timeout=PATIENCE) as group:
            sessions = {name: load(path, threads=1, group=group, program=name) for name in columns}
            sizes: list[int] = []
            for name in ("small", "main", "small", "large", "main", "large"):
                dp, tp = sessions[name].run(x[name][own])
                np.testing.assert_array_equal(dp, x[name][:, own[1]].sum(0))
                np.testing.assert_array_equal(tp, x[name][own[0]].sum(0))
                sizes.append(arena_of(group).size)
            return sizes

    for sizes in succeed(4, run):
        assert sizes == sorted(sizes) and len(set(sizes)) == 3


def serve(rank: int, size: int, path: str, folder: str) -> Any:
    session = join_mesh(path, DirectoryStore(folder), rank, size, deadline=PATIENCE)
    x = np.ones(COLUMNS if len(session.signature.inputs[0].shape) and path.endswith("places.lk") else 1, np.float32)
    return session.program.place, session.run(x)[0], [entry.name for entry in Path(folder).iterdir()]


def test_ranks_join_a_mesh(tmp_path: Path) -> None:
    path = write_gathered(tmp_path / "model.lk", MESH, BOTH)
    for _, result, left in run_processes(serve, 4, str(path), str(tmp_path / "store")):
        np.testing.assert_array_equal(result, expected(MESH, BOTH))
        assert left == []
    path = write_axes(tmp_path / "places.lk", by_place(MESH, "dp"))
    for rank, (place, result, _) in enumerate(run_processes(serve, 4, str(path), str(tmp_path / "second"))):
        assert place == {"dp": rank // 2}
        np.testing.assert_array_equal(result, np.full(COLUMNS, 2.0 ** (rank // 2), np.float32))


@pytest.mark.parametrize("way", ["--nproc", "--sim"])
def test_the_command_line(way: str, tmp_path: Path) -> None:
    path, out = write_gathered(tmp_path / "model.lk", MESH, BOTH), tmp_path / "out"
    code, _, err = finished(tmp_path, "run", path, way, 4, "--input", "x:1:f32", "-o", out)
    assert code == 0 and left_behind(tmp_path) == [], err
    np.testing.assert_array_equal(np.load(out / "y.npy"), expected(MESH, BOTH))
    code, _, err = finished(tmp_path, "run", path, way, 2, "--input", "x:1:f32")
    assert code == 2 and f"{way} is 2, and {path} is for a mesh dp=2,tp=2" in err, err


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_is_killed_is_named_by_all(rank: int, tmp_path: Path) -> None:
    program = gathered(MESH, BOTH)
    steps = [*program.steps, Step(JUMP_KERNEL, [], target=0, name="again")]
    path = write_axes(tmp_path / "model.lk", [replace(program, steps=steps)], parts(MESH, BOTH))
    with started(tmp_path, "run", path, "--nproc", 4, "--input", "x:1:f32") as process:
        await_steps(tmp_path, 4)
        os.kill(rank_process(tmp_path, rank), signal.SIGKILL)
        out, err = process.communicate(timeout=SECONDS)
        await_end(tmp_path)
    assert process.returncode == 8 and out == "" and left_behind(tmp_path) == []
    place = f"(dp={rank // 2},tp={rank % 2})"
    assert err.startswith(f"error[LK8009]: rank {rank} {place} was killed by SIGKILL\n"), err
    details = [line for line in err.splitlines() if line.startswith("  - ")]
    assert len(details) == 3, err
    for line in details:
        assert f"rank {rank} {place}" in line and line.endswith("(at model.py:7)"), err
