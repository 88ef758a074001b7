"""Elastic torchrun: a worker dies, a node joins, a node is lost; the others go on, nothing is left over."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.examples import example
from tests.support.processes import collect, run_processes, start_ranks
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group

ROOT = Path(__file__).resolve().parents[3]
LAST = "test_a_node_joins_and_is_lost"
LOSS = re.compile(r"rank (\d) of (\d), restarts (\d): loss ([\d.e-]+)")


MARK = "PROCESS_OF_THE_TEST"


def marked(mark: str) -> dict[str, str]:
    """Returns an environment that tells a process and all that it starts, each of which torchrun gives its session."""
    return {**os.environ, "OMP_NUM_THREADS": "1", MARK: mark}


def running(mark: str) -> list[int]:
    """Returns the processes that live of those that were started with a mark."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue  # it has just ended
    return found


def await_end(mark: str) -> None:
    """Waits until none is left: the kernel may still be at their ends."""
    end = time.monotonic() + PATIENCE
    while left := running(mark):
        assert time.monotonic() < end, f"processes {left} are left"
        time.sleep(0.05)


def kill(mark: str) -> None:
    for process in running(mark):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def undisturbed(rank: int, size: int, folder: str) -> float:
    with process_group(rank, size, folder):
        return example("elastic").train(Path(folder))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Returns the loss of a training that nothing disturbs."""
    return run_processes(undisturbed, 2, str(tmp_path_factory.mktemp("plain")))[0]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_worker_that_dies_is_replaced(rank: int, expected: float, tmp_path: Path) -> None:
    shared = {path.name for path in Path("/dev/shm").iterdir()}
    (folder := tmp_path / "disturbed").mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    mark = str(folder)
    agent = subprocess.Popen(
        [*torchrun, "--max-restarts", "2", "-m", "tests.support.elastic_worker", str(folder), str(rank), "5"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=marked(mark),
    )  # fmt: skip
    try:
        output, errors = agent.communicate(timeout=PATIENCE)
        assert agent.returncode == 0, errors
        rows = sorted(LOSS.findall(output))
        assert rows == [("0", "2", "1", repr(expected)), ("1", "2", "1", repr(expected))], (output, errors)
        assert "Segmentation" not in errors and "exitcode: -11" not in errors, errors  # the survivor ends in order
        await_end(mark)
    finally:
        kill(mark)
        agent.communicate()
    assert [path.name for path in folder.iterdir()] == ["checkpoint.pt"]
    assert not [path.name for path in Path("/dev/shm").iterdir() if path.name not in shared and "lowerkit" in path.name]


def node(folder: Path, port: int, mark: str, *, hosts_store: bool) -> subprocess.Popen[str]:
    options = [
        "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.2", "--local-addr=127.0.0.1",
        "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf",
        f"is_host={int(hosts_store)},last_call_timeout=1,join_timeout=120,keep_alive_interval=2",
    ]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, "-m", "tests.support.membership_worker", str(folder)],
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
        # Else an agent that comes later waits for an address that the first one wrote down in an earlier round.
        env={**marked(mark), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )  # fmt: skip


def wait_for(path: Path, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name} within {seconds} s"
        time.sleep(0.05)


def join_and_lose(folder: Path) -> None:
    """Trains in one node; a second one joins, and is lost."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first, second = f"{folder} 1", f"{folder} 2"
    nodes = [node(folder, port, first, hosts_store=True)]
    try:
        wait_for(folder / "at3")
        nodes.append(node(folder, port, second, hosts_store=False))
        wait_for(folder / "at6")
        # By the first rank that came there; the other one is to have written its line as well.
        deadline = time.monotonic() + PATIENCE
        while (folder / "steps").read_text().count("6 2\n") < 2:
            assert time.monotonic() < deadline, "one rank does not finish step 6"
            time.sleep(0.05)
        assert len(running(second)) == 2
        kill(second)  # agent and worker, as a host is lost
        (folder / "beyond6").touch()
        (folder / "beyond3").touch()
        _, errors = nodes[0].communicate(timeout=PATIENCE)
        assert nodes[0].returncode == 0, errors
        await_end(first)
    finally:
        for mark in (first, second):
            kill(mark)
        for one in nodes:
            one.communicate()


@pytest.fixture(scope="module", autouse=True)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[], Path]]:
    """Has a node join and be lost from now on, and returns the folder: agents wait for signs of life meanwhile.

    A recording must know which test runs what: there it begins with the test.
    """
    folder = tmp_path_factory.mktemp("disturbed")

    def run() -> Path:
        join_and_lose(folder)
        return folder

    if not any(item.path == request.path and item.name == LAST for item in request.session.items) or (
        request.config.getoption("--record")
    ):
        yield run
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(run).result


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
    results = collect(start_ranks(survivor, 3, str(tmp_path)), PATIENCE)
    assert results[1] == 0
    for rank in (0, 2):
        assert isinstance(results[rank], list), results[rank]  # a crash would be a number
        for message in results[rank]:
            assert re.search(r"LK80(09|11).*rank 1 has ended", message), message


@pytest.mark.slow
def test_a_node_joins_and_is_lost(trained: Callable[[], Path], expected: float) -> None:
    """Last: it has run since the first test."""
    folder = trained()
    steps = [line.split() for line in (folder / "steps").read_text().splitlines()]
    alone = [int(step) for step, size in steps if size == "1"]
    together = [int(step) for step, size in steps if size == "2"]
    assert alone == [1, 2, 3, *range(7, 13)] and together == [4, 4, 5, 5, 6, 6]
    assert float((folder / "loss").read_text()) == pytest.approx(expected, rel=1e-5)  # gradients round otherwise
