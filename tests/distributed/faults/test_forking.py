"""Children of fork(): they are no ranks, end as any process does, and keep nobody from noticing that a rank ended."""

# What the interpreter does at its end has private names.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.collective.work import Plan
from tests.support.processes import await_files, collect, run_processes, start_ranks
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group

TIMEOUT = 2 * PATIENCE
SMALL = np.ones(3, np.float32)


def ends_within(child: int, seconds: float) -> int:
    """Waits for a child; returns its exit status."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the child did not end within {seconds} s")


def in_child(function: object) -> int:
    """Forks; the child runs a function and ends through ``sys.exit``, with all that hangs on it."""
    child = os.fork()
    if child:
        return child
    try:
        assert callable(function)
        function()
    except BaseException as error:
        print(f"child: {error!r}", file=sys.stderr)
        os._exit(7)
    try:
        sys.exit(0)
    finally:
        # What the interpreter does at its end, and multiprocessing would skip.
        threading._shutdown()
        atexit._run_exitfuncs()
        os._exit(0)


def forks(rank: int, size: int, folder: str, shared_memory: bool) -> None:
    options = RendezvousOptions(b"t" * 32, shared_memory=shared_memory)
    group = Group.join(DirectoryStore(folder), "world", rank, size, options, timeout=TIMEOUT)
    group.start(group.calls.all_reduce(SMALL.copy())).wait()
    group.start(group.calls.all_reduce(SMALL.copy())).wait(TIMEOUT)
    group.start(group.calls.send(SMALL, 1 - rank))
    group.run(group.calls.receive(SMALL.copy(), 1 - rank))
    unfinished = group.start(group.calls.receive(SMALL.copy(), 1 - rank, 5))
    plan = Plan()
    plan.add(group, group.calls.barrier())

    def child() -> None:
        calls = (
            lambda: group.run(group.calls.all_reduce(SMALL)),
            lambda: group.start(group.calls.barrier()),
            lambda: group.run(group.calls.send(SMALL, 1 - rank)),
            unfinished.wait, unfinished.done, plan.run,
        )  # fmt: skip
        for call in calls:
            with pytest.raises(LowerkitError, match=rf"LK1010.*forked from rank {rank} of group 'world'"):
                call()
        assert "forked from rank" in (group.aborted or "")
        group.abort("by a child")
        group.close()

    for turn in range(3):
        assert ends_within(in_child(child if turn else lambda: None), PATIENCE) == 0
    # The parent's group is as it was.
    group.run(group.calls.send(SMALL, 1 - rank, 5))
    assert unfinished.wait().tolist() == [1, 1, 1]
    assert group.run(group.calls.all_reduce(SMALL)).tolist() == [2, 2, 2]
    group.close()


@pytest.mark.parametrize("shared_memory", [True, False], ids=["memory", "tcp"])
def test_a_child_is_no_rank_and_ends(tmp_path: Path, shared_memory: bool) -> None:
    tmp_path.chmod(0o700)
    run_processes(forks, 2, str(tmp_path), shared_memory, timeout=TIMEOUT)


def torch_forks(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder, timeout=TIMEOUT):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, async_op=True).get_future().wait()  # pyright: ignore[reportOptionalMemberAccess]

        def child() -> None:
            with pytest.raises(dist.DistBackendError, match="forked from rank"):
                dist.all_reduce(tensor)
            dist.destroy_process_group()

        assert ends_within(in_child(child), PATIENCE) == 0
        assert ends_within(in_child(lambda: None), PATIENCE) == 0
        dist.all_reduce(tensor)
        assert tensor.tolist() == [4, 4, 4]


def test_a_child_of_a_rank_of_torch_ends(tmp_path: Path) -> None:
    run_processes(torch_forks, 2, str(tmp_path), timeout=TIMEOUT)


def leaves_a_child(rank: int, size: int, folder: str, shared_memory: bool) -> str:
    options = RendezvousOptions(b"t" * 32, shared_memory=shared_memory)
    group = Group.join(DirectoryStore(folder), "world", rank, size, options, timeout=TIMEOUT)
    group.run(group.calls.all_reduce(SMALL))
    if rank == 1:
        child = os.fork()
        if not child:
            time.sleep(TIMEOUT)
            os._exit(0)
        (Path(folder) / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    await_files(Path(folder) / "child", timeout=TIMEOUT)
    start = time.monotonic()
    try:
        with pytest.raises(LowerkitError, match="LK8009|ended") as error:
            group.run(group.calls.all_reduce(SMALL))
        assert time.monotonic() - start < PATIENCE
    finally:
        os.kill(int((Path(folder) / "child").read_text()), signal.SIGKILL)
    group.close()
    return str(error.value)


@pytest.mark.parametrize("shared_memory", [True, False], ids=["memory", "tcp"])
def test_a_dead_rank_is_noticed_although_its_child_lives(tmp_path: Path, shared_memory: bool) -> None:
    tmp_path.chmod(0o700)
    first, second = collect(start_ranks(leaves_a_child, 2, str(tmp_path), shared_memory), TIMEOUT)
    assert "LK8009" in first and "rank 1" in first, first
    assert second == -signal.SIGKILL, second
