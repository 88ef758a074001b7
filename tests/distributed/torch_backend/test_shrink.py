"""Going on with the ranks that are left, in torch; and groups that meet where an earlier one of their name did."""

# torch's stubs do not export what torch.distributed imports.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lowerkit.distributed import Options, monitored_barrier, shrink_group
from lowerkit.errors import UsageError
from tests.support.processes import collect, run_processes, start_ranks
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group


def summed(group: Any = None) -> float:
    dist.all_reduce(tensor := torch.tensor([dist.get_rank(group) + 1.0]), group=group)
    return tensor.item()


def survivor(rank: int, size: int, folder: str, dead: int) -> list[float]:
    with process_group(rank, size, folder, options=Options(shared_memory=False)):
        dist.new_group([0, 1])
        summed()
        if rank == dead:
            os._exit(3)
        with pytest.raises(dist.DistBackendError, match=f"rank {dead} (has )?ended"):
            summed()
        group = shrink_group()
        assert group is dist.group.WORLD and group.options == Options(shared_memory=False)
        model = DistributedDataParallel(nn.Linear(3, 2))
        model(torch.ones(4, 3)).sum().backward()
        monitored_barrier(timeout=timedelta(seconds=PATIENCE))
        again = dist.new_group([1, 0])
        return [dist.get_rank(), dist.get_world_size(), summed(), summed(again)]


@pytest.mark.parametrize("dead", [0, 1])
def test_the_default_group_goes_on_without_a_dead_rank(dead: int, tmp_path: Path) -> None:
    results = collect(start_ranks(survivor, 3, str(tmp_path), dead), PATIENCE)
    assert results.pop(dead) == 3, results
    assert results == [[0, 2, 3.0, 3.0], [1, 2, 3.0, 3.0]]


def excluding(rank: int, size: int, folder: str) -> None:
    """Nobody died; one is left out of a group, and of the default group."""
    with process_group(rank, size, folder):
        part = dist.new_group([2, 0, 1], sort_ranks=False)
        assert isinstance(part, dist.ProcessGroup)
        own = dist.new_group([0])  # torch would name the next group by how many each rank is in
        if rank != 2:
            with pytest.raises(
                dist.DistBackendError, match=r"LK1010(.|\n)*lowerkit\.distributed\.shrink_group\(\[0\]\)"
            ):
                dist.shrink_group([0], part)
            smaller = shrink_group([0], part)  # rank 2 of the world
            assert (smaller.rank(), smaller.size(), dist.get_process_group_ranks(smaller)) == (rank, 2, [0, 1])
            assert summed(smaller) == 3.0
            for wrong in ([], [rank], [7]):
                with pytest.raises(dist.DistBackendError, match="LK1010.*cannot exclude"):
                    shrink_group(wrong, smaller)
        else:
            with pytest.raises(dist.DistBackendError, match="LK80"):
                summed(part)
        assert summed() == 6.0
        if rank == 0:
            with pytest.raises(dist.DistBackendError, match=r"LK8007.*\[2\] did not come to shrink it"):
                shrink_group([1], patience=timedelta(seconds=0.5))
            assert summed(own) == 1.0
        dist.barrier()
        if rank != 1:
            world = shrink_group([1])
            assert (world.rank(), world.size()) == (rank // 2, 2)
            assert summed() == 3.0


def test_ranks_that_live_are_left_out(tmp_path: Path) -> None:
    run_processes(excluding, 3, str(tmp_path))


def of_gloo(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder, backend="gloo"), pytest.raises(UsageError, match="LK1010"):
        shrink_group()


def test_groups_of_other_backends_are_refused(tmp_path: Path) -> None:
    run_processes(of_gloo, 1, str(tmp_path))


def again(rank: int, size: int, folder: str) -> None:
    """Two groups, one after the other, of one name in one store."""
    store = dist.FileStore(f"{folder}/store", -1)
    for missing in (None, 1):
        dist.init_process_group(
            "lowerkit", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE)
        )
        if missing is None:
            monitored_barrier()
        elif rank != missing:
            with pytest.raises(dist.DistBackendError, match="LK8008"):
                monitored_barrier(timeout=timedelta(seconds=0.3))
        dist.barrier()
        dist.destroy_process_group()


def test_what_an_earlier_group_left_in_the_store_does_not_count(tmp_path: Path) -> None:
    run_processes(again, 2, str(tmp_path))
