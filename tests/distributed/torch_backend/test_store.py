"""Groups that meet in a store of torch: in silence, told at once what does not fit, and gone without a trace."""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lowerkit.distributed.torch_store import TorchStore
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE, run_ranks, succeed
from tests.support.torch_groups import process_group

TIMEOUT = 2 * PATIENCE


@pytest.fixture(params=["tcp", "tcp without libuv", "file", "hash"])
def store_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], dist.Store]:
    """Makes each rank's store; rank 0's is made now."""
    if request.param == "hash":
        shared = dist.HashStore()
        return lambda _: shared
    if request.param == "file":
        return lambda _: dist.FileStore(str(tmp_path / "store"), 2)
    libuv = request.param == "tcp"
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=libuv)
    return lambda rank: (
        server
        if rank == 0
        else dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False, use_libuv=libuv)
    )


def test_a_store_of_torch_is_a_store(store_of: Callable[[int], dist.Store], request: pytest.FixtureRequest) -> None:
    stores = [TorchStore(store_of(rank)) for rank in range(2)]
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        stores[1].get("key", 0.05)
    assert time.monotonic() - start < PATIENCE
    # Often: a value that is still under way when ``set`` returns is seldom overtaken.
    # Without libuv each takes 70 ms: torch's sockets delay what is small.
    without_libuv = "tcp without libuv" in request.node.name
    for value in (b"", b"\xff\0", b"text") * (8 if without_libuv else 100):
        stores[0].set("key", value)
        assert stores[1].get("key", PATIENCE) == value
    assert stores[1].delete("key")
    with pytest.raises(TimeoutError):
        stores[0].get("key", 0.0)
    assert stores[0].compare_set("key", b"", b"one") == b"one" == stores[1].compare_set("key", b"", b"two")


def test_ranks_that_come_late_are_awaited_in_silence(
    store_of: Callable[[int], dist.Store], capfd: pytest.CaptureFixture[str]
) -> None:
    stores = [store_of(rank) for rank in range(2)]
    keys = stores[0].num_keys()

    def join(rank: int) -> None:
        time.sleep(0.3 * rank)
        group = Group.join(TorchStore(stores[rank]), "world", rank, 2, timeout=TIMEOUT)
        group.run(group.calls.barrier())
        group.close()

    succeed(2, join, timeout=TIMEOUT)
    assert capfd.readouterr().err == ""
    assert stores[0].num_keys() == keys


# Two seconds each, and which kind of store it is makes no difference to the tokens.
@pytest.mark.parametrize(
    "store_of",
    ["tcp", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("tcp without libuv", "file")), "hash"],
    indirect=True,
)
@pytest.mark.parametrize("with_token", [0, 1])
def test_a_token_for_one_rank_alone_is_told_to_both(store_of: Callable[[int], dist.Store], with_token: int) -> None:
    stores = [store_of(rank) for rank in range(2)]

    def join(rank: int) -> None:
        options = RendezvousOptions(b"t" * 32 if rank == with_token else None, timeout=TIMEOUT)
        Group.join(TorchStore(stores[rank]), "world", rank, 2, options)

    start = time.monotonic()
    for result in run_ranks(2, join, timeout=TIMEOUT):
        assert isinstance(result, LowerkitError) and result.code == "LK8007", result
        assert f"ranks [{with_token}] were given a job token and ranks [{1 - with_token}] were not" in str(result)
    assert time.monotonic() - start < PATIENCE


def groups(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        world = dist.group.WORLD
        assert world is not None
        store = world.get_group_store()
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        dist.barrier()
        counts: list[int] = []
        for _ in range(4):
            group = dist.new_group()
            assert isinstance(group, dist.ProcessGroup)
            for _ in range(3):
                dist.monitored_barrier(group)
            dist.all_reduce(torch.ones(1), group=group)
            dist.destroy_process_group(group)
            dist.barrier()
            counts.append(store.num_keys())
            dist.barrier()
        # What torch itself keeps of a group stays, and the last verdict of monitored_barrier.
        assert counts[3] - counts[2] == counts[2] - counts[1] <= 4, counts


def test_groups_leave_little_in_the_store(tmp_path: Path) -> None:
    run_processes(groups, 2, str(tmp_path))
