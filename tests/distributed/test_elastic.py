"""Elastic restarts of torchrun: a worker dies, all go on from the checkpoint, and nothing is left over."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.test_training import example
from tests.support.processes import collect, run_processes, start_ranks
from tests.support.torch_groups import process_group

ROOT = Path(__file__).resolve().parents[2]
LOSS = re.compile(r"rank (\d) of (\d), restarts (\d): loss ([\d.e-]+)")


def session(leader: int) -> list[int]:
    """Returns the processes that torchrun or its workers left."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(process.name))
    return found


def undisturbed(rank: int, size: int, folder: str) -> float:
    with process_group(rank, size, folder):
        return example("elastic").train(Path(folder))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_dies_is_replaced(rank: int, tmp_path: Path) -> None:
    shared = {path.name for path in Path("/dev/shm").iterdir()}
    (plain := tmp_path / "plain").mkdir()
    (folder := tmp_path / "disturbed").mkdir()
    expected = run_processes(undisturbed, 2, str(plain))[0]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    running = subprocess.Popen(
        [*torchrun, "--max-restarts", "2", "-m", "tests.support.elastic_worker", str(folder), str(rank), "5"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        output, errors = running.communicate(timeout=240)
        assert running.returncode == 0, errors
        rows = sorted(LOSS.findall(output))
        assert rows == [("0", "2", "1", repr(expected)), ("1", "2", "1", repr(expected))], (output, errors)
        assert "Segmentation" not in errors and "exitcode: -11" not in errors, errors  # the survivor ends in order
        end = time.monotonic() + 20.0
        while left := session(running.pid):  # the kernel may still be at their ends
            assert time.monotonic() < end, f"processes {left} are left"
            time.sleep(0.05)
    finally:
        for process in [running.pid, *session(running.pid)]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        running.communicate()
    assert [path.name for path in folder.iterdir()] == ["checkpoint.pt"]
    assert not [path.name for path in Path("/dev/shm").iterdir() if path.name not in shared and "lowerkit" in path.name]


def survivor(rank: int, size: int, folder: str) -> list[str]:
    """Rank 1 ends between forward and backward; what do the others see, in DDP and of a future?"""
    with process_group(rank, size, folder):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(3, 2))
        model(torch.ones(4, 3)).sum().backward()
        loss = model(torch.ones(4, 3)).sum()
        if rank == 1:
            os._exit(0)
        with pytest.raises(RuntimeError) as of_backward:
            loss.backward()
        with pytest.raises(RuntimeError) as of_future:
            future_of(dist.all_reduce(torch.ones(3), async_op=True)).wait()
        return [str(of_backward.value), str(of_future.value)]


def future_of(work: Any) -> Any:
    return work.get_future()


def test_those_who_train_on_learn_who_died(tmp_path: Path) -> None:
    results = collect(start_ranks(survivor, 3, str(tmp_path)), 120.0)
    assert results[1] == 0
    for rank in (0, 2):
        assert isinstance(results[rank], list), results[rank]  # a crash would be a number
        for message in results[rank]:
            assert re.search(r"LK80(09|11).*rank 1 has ended", message), message
