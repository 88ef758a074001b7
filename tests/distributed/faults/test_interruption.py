"""Ctrl-C ends every wait at once, whatever it is for: nobody sits out a timeout."""

# torch does not export its stores to type checkers; where a thread stands only a private function tells.
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from lowerkit.distributed.torch_store import TorchStore
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore, MemoryStore
from lowerkit.runtimes.collective.work import Plan
from tests.support.processes import await_files, collect, start_ranks
from tests.support.ranks import PATIENCE

# Of an operation: what ends it earlier is not its deadline.
TIMEOUT = 2 * PATIENCE
STILL_LOOKS = 5
SMALL = np.ones(3, np.float32)
LARGE = np.ones(1 << 20, np.float32)


def interrupted(wait: Callable[[], Any]) -> None:
    """Interrupts this process while it waits; the wait has to end with that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    kill_when_it_waits(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() - start < PATIENCE


def kill_when_it_waits(number: signal.Signals) -> None:
    """Sends a signal to this process once the calling thread stands still in one place."""

    def watch() -> None:
        last, looks = None, 0
        while looks < STILL_LOOKS:
            time.sleep(0.01)
            frame = sys._current_frames()[thread]
            place = id(frame), frame.f_lasti
            last, looks = place, looks + 1 if place == last else 0
        os.kill(os.getpid(), number)

    thread = threading.get_ident()
    threading.Thread(target=watch, daemon=True).start()


def plan_of(group: Group) -> Plan:
    plan = Plan()
    plan.add(group, group.calls.all_reduce(SMALL.copy()))
    return plan


WAITS: dict[str, Callable[[Group], Any]] = {
    "all_reduce": lambda group: group.run(group.calls.all_reduce(SMALL)),
    "large all_reduce": lambda group: group.run(group.calls.all_reduce(LARGE)),
    "barrier": lambda group: group.run(group.calls.barrier()),
    "all_to_all": lambda group: group.run(group.calls.all_to_all([SMALL, SMALL])),
    "work": lambda group: group.start(group.calls.all_reduce(SMALL)).wait(),
    "second work": lambda group: [group.start(group.calls.all_reduce(SMALL)) for _ in range(2)][1].wait(TIMEOUT),
    "receive": lambda group: group.run(group.calls.receive(SMALL.copy(), 1)),
    "receive started": lambda group: group.start(group.calls.receive(SMALL.copy(), 1)).wait(),
    "large send": lambda group: group.run(group.calls.send(LARGE, 1)),
    "plan": lambda group: plan_of(group).run(),
    "arena": lambda group: group.arena(1 << 16),
    "arena after work": lambda group: (group.start(group.calls.all_reduce(SMALL)), group.arena(1 << 16)),
}  # fmt: skip


def waits(rank: int, size: int, folder: str, shared_memory: bool) -> None:
    store, done = DirectoryStore(folder), Path(folder) / "done"
    options = RendezvousOptions(b"t" * 32, shared_memory=shared_memory)
    kinds = {name: wait for name, wait in WAITS.items() if shared_memory or "arena" not in name}
    groups = {name: Group.join(store, name, rank, size, options, timeout=TIMEOUT) for name in kinds}
    if rank == 1:
        await_files(done, timeout=TIMEOUT)
        # Where an operation was cut short its group is aborted, and says by whom.
        start = time.monotonic()
        with pytest.raises(LowerkitError, match=r"interrupted while it waited for rank 1|interrupted"):
            groups["all_reduce"].run(groups["all_reduce"].calls.all_reduce(SMALL))
        assert time.monotonic() - start < PATIENCE
    else:
        for name, wait in kinds.items():
            interrupted(lambda name=name, wait=wait: wait(groups[name]))
        done.touch()
    for group in groups.values():
        group.close()


@pytest.mark.parametrize("shared_memory", [True, False], ids=["memory", "tcp"])
def test_waits_for_operations(tmp_path: Path, shared_memory: bool) -> None:
    tmp_path.chmod(0o700)
    for result in collect(start_ranks(waits, 2, str(tmp_path), shared_memory), TIMEOUT):
        assert result == {}, result


def meetings(rank: int, size: int, folder: str) -> None:
    options = RendezvousOptions(timeout=TIMEOUT)
    for store in (DirectoryStore(folder), MemoryStore(), TorchStore(dist.HashStore())):
        interrupted(lambda store=store: Group.join(store, "world", rank, size, options))
        interrupted(lambda store=store: store.get("nothing", TIMEOUT))
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    interrupted(lambda: Group.join(TorchStore(server), "world", rank, size, options))


def test_waits_for_ranks_that_do_not_come(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (result,) = collect(start_ranks(lone, 1, str(tmp_path)), TIMEOUT)
    assert result == {}, result


def lone(rank: int, size: int, folder: str) -> None:
    del size
    meetings(rank, 2, folder)


def handlers(rank: int, size: int, folder: str) -> None:
    group = Group.join(DirectoryStore(folder), "world", rank, size, timeout=TIMEOUT)
    handled = Path(folder) / "handled"
    if rank == 1:
        await_files(handled)
        assert group.run(group.calls.all_reduce(SMALL)).tolist() == [2, 2, 2]
    else:
        seen: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: (seen.append(number), handled.touch()))
        kill_when_it_waits(signal.SIGUSR1)
        assert group.run(group.calls.all_reduce(SMALL)).tolist() == [2, 2, 2]
        assert seen == [signal.SIGUSR1]
    group.close()


def test_a_handler_that_returns_lets_the_wait_go_on(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for result in collect(start_ranks(handlers, 2, str(tmp_path)), TIMEOUT):
        assert result == {}, result


def closing(rank: int, size: int, folder: str) -> None:
    group = Group.join(DirectoryStore(folder), "world", rank, size, timeout=TIMEOUT)
    if rank == 0:
        signal.signal(signal.SIGUSR1, lambda *_: group.close())
        kill_when_it_waits(signal.SIGUSR1)
        with pytest.raises(LowerkitError, match="LK8011"):
            group.run(group.calls.all_reduce(SMALL))
        (Path(folder) / "done").touch()
    else:
        await_files(Path(folder) / "done", timeout=TIMEOUT)
    group.close()


def test_a_handler_may_close_the_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for result in collect(start_ranks(closing, 2, str(tmp_path)), TIMEOUT):
        assert result == {}, result
