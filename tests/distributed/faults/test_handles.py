"""Handles of operations that go on behind the caller: dropped before the end, and asked after the group's end."""

# Whether something is in flight nobody is told.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group

LENGTH = 300_000
TURNS = 24


def dropped(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        if rank == 0:
            for turn in range(TURNS):
                dist.isend(torch.full((LENGTH,), float(turn)), 1)  # nobody holds the work, nor the tensor
            reused = [torch.full((LENGTH,), -1.0) for _ in range(TURNS)]
            dist.barrier()
            assert all(bool((one == -1).all()) for one in reused)
            for turn in range(TURNS):
                dist.all_reduce(torch.full((LENGTH,), float(turn)), async_op=True)
        else:
            received = torch.empty(LENGTH)
            for turn in range(TURNS):
                dist.recv(received, 0)
                assert bool((received == turn).all()), turn
            dist.barrier()
            sums = [torch.full((LENGTH,), 1.0) for _ in range(TURNS)]
            for one in sums:
                dist.all_reduce(one, async_op=True)
            dist.barrier()
            assert all(bool((one == turn + 1).all()) for turn, one in enumerate(sums))
            return
        dist.barrier()


def test_work_that_nobody_holds_goes_on(tmp_path: Path) -> None:
    run_processes(dropped, 2, str(tmp_path))


def dropped_arrays(rank: int, size: int, folder: str) -> None:
    group = Group.join(DirectoryStore(folder), "world", rank, size, timeout=PATIENCE)
    for turn in range(TURNS):
        group.start(group.calls.all_reduce(np.full(LENGTH, float(turn + rank))))
    reused = [np.full(LENGTH, -1.0) for _ in range(TURNS)]
    total = group.run(group.calls.all_reduce(np.full(3, 1.0)))
    assert (total == size).all() and all((one == -1).all() for one in reused)
    group.close()


def test_work_of_arrays_that_nobody_holds_goes_on(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    run_processes(dropped_arrays, 2, str(tmp_path))


def late(rank: int, size: int, folder: str) -> str:
    with process_group(rank, size, folder):
        done = dist.all_reduce(torch.ones(5), async_op=True)
        never = dist.irecv(torch.ones(3), 1 - rank)
        assert done is not None and never is not None
        dist.barrier()
    assert done.is_completed() and done.is_success() and done.wait()
    assert never.is_completed() and not never.is_success()
    try:
        never.wait()
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("a receive that nobody answered is done")


def test_handles_outlive_their_group(tmp_path: Path) -> None:
    for message in run_processes(late, 2, str(tmp_path)):
        assert re.search("LK8009.*rank . (has )?ended|LK8011.*group was closed", message), message  # who was first


def heard(rank: int, size: int, folder: str) -> None:
    """Whoever hears of the end may destroy the group: nothing is in flight any more."""
    with process_group(rank, size, folder):
        world = dist.group.WORLD
        assert isinstance(world, ProcessGroup)
        if rank == 1:
            time.sleep(0.1)
        work: Any = dist.all_reduce(torch.ones(3), async_op=True)
        assert work.get_future().then(lambda _: world._waiters.busy()).wait() is False


def test_what_a_future_tells_is_not_in_flight(tmp_path: Path) -> None:
    run_processes(heard, 2, str(tmp_path))


def in_callbacks(rank: int, size: int, folder: str) -> None:
    """Callbacks start collectives and wait for them, to the third level, as hooks of DDP do."""
    with process_group(rank, size, folder):

        def further(level: int) -> float:
            work: Any = dist.all_reduce(tensor := torch.ones(3), async_op=True)
            inner = work.get_future().then(lambda _: further(level - 1)).wait() if level else work.get_future().wait()
            return float(tensor[0]) if level == 0 else inner

        assert further(3) == 2.0


def test_callbacks_wait_for_what_they_start(tmp_path: Path) -> None:
    run_processes(in_callbacks, 2, str(tmp_path), timeout=PATIENCE)


def late_arrays(rank: int, size: int, folder: str) -> str:
    group = Group.join(DirectoryStore(folder), "world", rank, size, timeout=PATIENCE)
    done = group.start(group.calls.all_reduce(np.ones(5)))
    never = group.start(group.calls.receive(np.ones(3), 1 - rank))
    group.run(group.calls.barrier())
    group.close()
    assert done.done() and (done.wait() == size).all()
    try:
        never.wait()
    except LowerkitError as error:
        return error.code
    raise AssertionError("a receive that nobody answered is done")


def test_handles_of_arrays_outlive_their_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert set(run_processes(late_arrays, 2, str(tmp_path))) <= {"LK8009", "LK8011"}
