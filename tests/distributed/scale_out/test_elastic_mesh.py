"""torchrun and compiled meshes: a rank dies, nodes come and go, ranks in two network namespaces."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.faults.namespaces import missing, wire
from tests.support.mesh.artifacts import COLUMNS, expected, write_mesh
from tests.support.mesh.processes import await_end, await_value, finished, running, started
from tests.support.ranks import PATIENCE

pytestmark = pytest.mark.slow
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
WORKER = ("-m", "tests.support.scale_out.mesh_worker")
REQUESTS = 6
LAST = "test_nodes_come_and_go"


def make_folder(folder: Path) -> list[np.ndarray[Any, Any]]:
    """Writes artifacts for one rank and for two, and requests; returns these."""
    (folder / "requests").mkdir(parents=True)
    for ranks in (1, 2):
        write_mesh(folder / f"tp{ranks}.lk", ranks)
    requests = [np.full(COLUMNS, number, np.float32) for number in range(REQUESTS)]
    for number, request in enumerate(requests):
        np.save(folder / "requests" / f"{number}.npy", request)
    return requests


def ranks_of_results(folder: Path, requests: list[Any]) -> list[int]:
    """Returns how many ranks answered each request; fails where a result is that of no mesh."""
    found: list[int] = []
    for number, request in enumerate(requests):
        result = np.load(folder / "results" / f"{number}.npy")
        found += [ranks for ranks in (1, 2) if np.array_equal(result, expected(request, ranks))]
    assert len(found) == len(requests) and not (folder / "results" / "unfinished").exists()
    return found


def test_a_rank_that_dies_is_replaced(tmp_path: Path) -> None:
    """Rank 0, which writes the results; the death of the other one is no other case for torchrun."""
    requests = make_folder(folder := tmp_path / "work")
    (folder / "kill").write_text("0")
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "2", *WORKER)
    code, out, err = finished(tmp_path, folder, command=command)
    assert code == 0, err
    assert sorted(re.findall(r"rank (\d), restarts (\d)", out)) == [("0", "1"), ("1", "1")], out
    assert ranks_of_results(folder, requests) == [2] * REQUESTS


def node(endpoint: str, address: str, prefix: list[str], *, keeps: bool, nodes: str) -> tuple[str, ...]:
    """Returns what starts the agent of a node."""
    options = [
        f"--nnodes={nodes}", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.2",
        f"--local-addr={address}", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={endpoint}",
        "--rdzv-conf", f"is_host={int(keeps)},last_call_timeout=1,join_timeout=60,keep_alive_interval=2",
    ]  # fmt: skip
    # Else an agent that comes later waits for an address that the first one wrote down in an earlier round.
    return ("env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", *prefix, *TORCHRUN, *options)


def come_and_go(where: Path) -> list[int]:
    """One node begins, a second joins, and is lost with all its processes; returns how many ranks answered."""
    requests = make_folder(folder := where / "work")
    (folder / "waits").touch()
    marks = [where / "first", where / "second"]
    for mark in marks:
        mark.mkdir()
    with wire() as made, ExitStack() as stack:
        endpoint = f"{made.addresses[0]}:29400"
        commands = [
            (*node(endpoint, made.addresses[side], made.inside(side), keeps=not side, nodes="1:2"), *WORKER)
            for side in (0, 1)
        ]
        first = stack.enter_context(started(marks[0], folder, command=commands[0]))
        await_value((folder / "at1").exists, "the first node did not begin")
        stack.enter_context(started(marks[1], folder, command=commands[1]))
        await_value((folder / "at2").exists, "the second node did not join")
        for process in running(marks[1]):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        (folder / "beyond1").touch()
        (folder / "beyond2").touch()
        _, err = first.communicate(timeout=PATIENCE)
        assert first.returncode == 0, err
        for mark in marks:
            await_end(mark)
    return ranks_of_results(folder, requests)


@pytest.fixture(scope="module", autouse=True)
def answered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[[], list[int]]]:
    """Has nodes come and go from now on: agents wait for each other's signs of life, beside the other tests.

    A recording must know which test runs what: there it begins with the test.
    """
    wanted = any(item.path == request.path and item.name.startswith(LAST) for item in request.session.items)
    folder = tmp_path_factory.mktemp("nodes")
    if missing() or not wanted or request.config.getoption("--record"):
        yield lambda: come_and_go(folder)
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(come_and_go, folder).result


def test_ranks_of_two_nodes_run_one_artifact(tmp_path: Path) -> None:
    """`torchrun --nnodes 2 -m lowerkit run`, a node in each namespace: the ranks talk by TCP over the wire."""
    if reason := missing():
        pytest.skip(reason)
    path, out = write_mesh(tmp_path / "two.lk"), tmp_path / "out"
    x = np.linspace(-1, 1, COLUMNS, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    given = ["run", path, "--input", f"x=@{tmp_path}/x.npy", "-o", out]
    (others := tmp_path / "others").mkdir()
    with wire() as made:
        endpoint = f"{made.addresses[0]}:29400"
        near, far = (
            (*node(endpoint, made.addresses[side], made.inside(side), keeps=not side, nodes="2"), "-m", "lowerkit")
            for side in (0, 1)
        )
        with started(others, *given, command=far) as other:
            code, _, err = finished(tmp_path, *given, command=near)
            _, other_err = other.communicate(timeout=PATIENCE)
            assert code == 0 and other.returncode == 0, err + other_err
    np.testing.assert_allclose(np.load(out / "y.npy"), expected(x), rtol=1e-6)


@pytest.mark.exhaustive  # the same agents as between two namespaces
def test_nodes_of_loopback_need_no_namespaces(tmp_path: Path) -> None:
    """The same agents on one host, as in the examples of the documentation."""
    requests = make_folder(folder := tmp_path / "work")
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    script = str(Path(__file__).resolve().parents[3] / "docs/distributed/elastic_mesh.py")
    (others := tmp_path / "others").mkdir()
    near, far = ((*node(endpoint, "127.0.0.1", [], keeps=keeps, nodes="2"), script) for keeps in (True, False))
    with started(others, folder, command=far) as other:
        code, out, err = finished(tmp_path, folder, command=near)
        more, other_err = other.communicate(timeout=PATIENCE)
        assert code == 0 and other.returncode == 0, err + other_err
    assert sorted((out + more).splitlines()) == [f"rank {rank} of 2: {REQUESTS} requests" for rank in (0, 1)]
    assert ranks_of_results(folder, requests) == [2] * REQUESTS


def test_nodes_come_and_go_between_two_namespaces(answered: Callable[[], list[int]]) -> None:
    """With the second node there are two ranks, which talk over TCP. Last: it has run since the first test."""
    if reason := missing():
        pytest.skip(reason)
    assert answered() == [1, 1, 2, 2, 1, 1]
