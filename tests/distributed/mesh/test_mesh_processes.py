"""Programs for a mesh in processes: numbers, ranks that end in the middle, interruptions, and children of fork()."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.collective.failures import CollectiveFault
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.manifest import JUMP_KERNEL, Buffer, CollectiveCall, Signature, Step, TensorSpec
from lowerkit.runtimes.session import Session, load
from tests.support.handmade_code import f32
from tests.support.mesh.collective_programs import (
    CALLS,
    Array,
    collective,
    copy,
    every_dtype,
    expected,
    mesh_program,
    one_collective,
    run_until_it_fails,
    same_bits,
    write_collectives,
    write_programs,
)
from tests.support.processes import await_files, collect, run_processes, start_ranks
from tests.support.ranks import PATIENCE

# Of an operation: what ends it earlier is not its deadline.
TIMEOUT = 2 * PATIENCE


def join(folder: str, rank: int, size: int, shared_memory: bool = True) -> Group:
    options = RendezvousOptions(b"t" * 32, shared_memory=shared_memory)
    return Group.join(DirectoryStore(folder), "world", rank, size, options, timeout=TIMEOUT)


def private(folder: Path) -> str:
    place = folder / "store"
    place.mkdir(mode=0o700)
    return str(place)


def computes(rank: int, size: int, folder: str, paths: list[str], cases: list[Any], shared_memory: bool) -> list[Any]:
    with join(folder, rank, size, shared_memory) as group:
        artifacts = {path: open_artifact(path) for path in paths}
        results: list[list[Array]] = []
        for path, name, inputs in cases:
            session = Session(artifacts[path], 2, "structure", None, name, None, group)
            results.append(session.run(inputs[rank]))
        return results


@pytest.mark.parametrize("shared_memory", [True, False])
def test_every_collective_gives_what_numpy_gives(shared_memory: bool, tmp_path: Path) -> None:
    cases: list[tuple[str, str, list[Array]]] = []
    wanted: list[list[Array]] = []
    for operation, reduction in CALLS:
        path = str(write_collectives(tmp_path, operation, reduction, 2))
        for name, inputs in every_dtype(operation, reduction, 2, [0, 3, 2000]):
            cases.append((path, name, inputs))
            wanted.append(expected(operation, reduction, inputs))
    paths = sorted({path for path, _, _ in cases})
    results = run_processes(computes, 2, private(tmp_path), paths, cases, shared_memory)
    for rank in range(2):
        for (_, name, inputs), (y, z), outputs in zip(cases, results[rank], wanted, strict=True):
            assert same_bits(y, outputs[rank]), (name, rank)
            assert same_bits(z, inputs[rank]), (name, rank)


def dies(rank: int, size: int, folder: str, path: str, shared_memory: bool) -> tuple[str, str]:
    group = join(folder, rank, size, shared_memory)
    session = load(path, threads=1, group=group)
    x = np.ones(100_000, np.float32)
    session.run(x)
    if rank == 1:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    start = time.monotonic()
    error = run_until_it_fails(session, x)
    assert time.monotonic() - start < PATIENCE
    with pytest.raises(CollectiveFault) as again:
        session.run(x)
    group.close()
    return str(error), str(again.value)


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_rank_that_is_killed_is_named(shared_memory: bool, behind: bool, tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 2, behind=behind)])
    (first, again), killed = collect(start_ranks(dies, 2, private(tmp_path), str(path), shared_memory), TIMEOUT)
    assert killed == -signal.SIGKILL
    for part in ("LK8009", "all_reduce failed in step 'all_reduce@' at rank 0 of tp=2", "rank 1", "model.py:7"):
        assert part in first, first
    assert "LK8011" in again and "cannot begin at rank 0 of tp=2" in again and "rank 1" in again


def endless(ranks: int) -> Any:
    """Sums ``x`` behind a loop that goes on as long as ``more`` is true."""
    signature = Signature(inputs=[TensorSpec("stop", "i1", []), f32("x", 8)], outputs=[f32("y", 8)])
    buffers = [
        Buffer("input", 1, index=0),
        Buffer("input", 32, index=1),
        Buffer("output", 32, index=0),
        Buffer("arena", 32),
    ]
    start, done = (
        collective(1, 3, CollectiveCall("all_reduce", "tp", "f32", phase=phase)) for phase in ("start", "done")
    )
    return mesh_program(
        signature, buffers, [start, copy(1, 2), Step(JUMP_KERNEL, [0], target=1), done, copy(3, 2)], ranks
    )


def interrupted(rank: int, size: int, folder: str, path: str, stop: bool) -> str:
    """Rank 0 is interrupted: in a loop, or as it waits for rank 1, which does not come."""
    group, done = join(folder, rank, size), Path(folder) / "done"
    session = load(path, threads=1, group=group)
    x = np.ones(8, np.float32)
    session.run(np.array(True), x)
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            session.run(np.array(stop), x)
        assert time.monotonic() - start < PATIENCE
        done.touch()
    else:
        await_files(done)
    with pytest.raises(CollectiveFault, match=r"LK8011|LK8009") as error:
        session.run(np.array(True), x)
    Path(folder, f"left{rank}").touch()
    await_files(Path(folder, f"left{1 - rank}"))
    group.close()
    return str(error.value)


@pytest.mark.parametrize("stop", [True, False], ids=["waiting", "computing"])
def test_an_interruption_ends_the_run_and_the_others_are_told(stop: bool, tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [endless(2)])
    for message in run_processes(interrupted, 2, private(tmp_path), str(path), stop):
        assert "interrupted" in message or "KeyboardInterrupt" in message, message


def forks(rank: int, size: int, folder: str, path: str) -> str:
    with join(folder, rank, size) as group:
        session = load(path, threads=1, group=group)
        x = np.full(50_000, rank + 1.0, np.float32)
        session.run(x)
        child = os.fork()
        if not child:
            code = 1
            try:
                session.run(x)
            except LowerkitError as error:
                code = 0 if error.code == "LK1010" and "forked" in error.message else 2
            del session
            os._exit(code)
        _, status = os.waitpid(child, 0)
        for _ in range(3):
            assert session.run(x)[0][0] == 3.0
        return f"the child ended with {os.waitstatus_to_exitcode(status)}"


def test_a_child_of_a_rank_is_refused_before_it_touches_memory_of_the_ranks(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "model.lk", [one_collective("all_reduce", "sum", "f32", 2, behind=True)])
    assert run_processes(forks, 2, private(tmp_path), str(path)) == ["the child ended with 0"] * 2
