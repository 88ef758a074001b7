"""A group is closed while other threads are in calls of it: they end with an error, and none reads freed memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lowerkit.errors import LowerkitError
from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore, MemoryStore
from lowerkit.runtimes.collective.work import Plan
from tests.support.processes import await_files, run_processes
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group

TIMEOUT = 2 * PATIENCE
SMALL = np.ones(3, np.float32)
LARGE = np.ones(1 << 20, np.float32)


def plan_of(group: Group) -> Plan:
    plan = Plan()
    plan.add(group, group.calls.all_reduce(SMALL.copy()))
    return plan


CALLS: dict[str, Callable[[Group], Any]] = {
    "all_reduce": lambda group: group.run(group.calls.all_reduce(SMALL)),
    "large": lambda group: group.run(group.calls.all_reduce(LARGE)),
    "work": lambda group: group.start(group.calls.all_reduce(SMALL)).wait(),
    "asked work": lambda group: ask_until_done(group.start(group.calls.all_reduce(SMALL))),
    "receive": lambda group: group.run(group.calls.receive(SMALL.copy(), 1)),
    "receive started": lambda group: group.start(group.calls.receive(SMALL.copy(), 1)).wait(),
    "send": lambda group: group.run(group.calls.send(LARGE, 1)),
    "plan": lambda group: plan_of(group).run(),
}


def ask_until_done(work: Any) -> None:
    while not work.done():
        pass


def closed(rank: int, size: int, folder: str, shared_memory: bool) -> None:
    store, done = DirectoryStore(folder), Path(folder) / "done"
    options = RendezvousOptions(b"t" * 32, shared_memory=shared_memory)
    groups = {name: Group.join(store, name, rank, size, options, timeout=TIMEOUT) for name in CALLS}
    if rank == 1:
        await_files(done, timeout=TIMEOUT)
    else:
        for name, call in CALLS.items():
            errors: list[BaseException] = []
            threads = [threading.Thread(target=catch, args=(call, groups[name], errors)) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
            start = time.monotonic()
            groups[name].close()
            for thread in threads:
                thread.join(PATIENCE)
            assert time.monotonic() - start < PATIENCE and len(errors) == 3, name
            assert all(isinstance(error, LowerkitError) for error in errors), (name, errors)
        done.touch()
    for group in groups.values():
        group.close()


def catch(call: Callable[[Group], Any], group: Group, errors: list[BaseException]) -> None:
    try:
        call(group)
    except BaseException as error:
        errors.append(error)


@pytest.mark.parametrize("shared_memory", [True, False], ids=["memory", "tcp"])
def test_calls_of_other_threads_end(tmp_path: Path, shared_memory: bool) -> None:
    tmp_path.chmod(0o700)
    run_processes(closed, 2, str(tmp_path), shared_memory, timeout=TIMEOUT)


def destroyed(rank: int, size: int, folder: str) -> None:
    errors: list[BaseException] = []
    done = Path(folder) / "done"

    def reduce() -> None:
        try:
            for _ in range(10**9):
                dist.all_reduce(torch.ones(3))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=reduce)
    with process_group(rank, size, folder, timeout=TIMEOUT):
        if rank == 0:
            thread.start()
            time.sleep(0.2)
        else:
            for _ in range(3):
                dist.all_reduce(torch.ones(3))
            await_files(done, timeout=TIMEOUT)
    if rank == 0:
        thread.join(PATIENCE)
        assert isinstance(errors[0], dist.DistBackendError | ValueError), errors  # torch's: there is no default group
        done.touch()


def test_a_process_group_is_destroyed_beside_a_collective(tmp_path: Path) -> None:
    run_processes(destroyed, 2, str(tmp_path), timeout=TIMEOUT)


def test_a_closed_group_refuses_calls() -> None:
    group = Group.join(MemoryStore(), "world", 0, 1)
    plan = plan_of(group)
    work = group.start(group.calls.all_reduce(SMALL.copy()))
    work.wait()
    group.close()
    group.close()
    for call in (plan.run, *(lambda call=call: call(group) for call in CALLS.values())):
        with pytest.raises(LowerkitError, match=r"LK8011.*closed on this rank"):
            call()
    assert work.done() and group.aborted == "the group was closed on this rank"
    group.abort("nobody hears it")
    with pytest.raises(_collective.CollectiveError):
        group.native.dead()
