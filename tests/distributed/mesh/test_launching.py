"""`lowerkit run` on a mesh, in real processes: outputs, one diagnostic for all ranks, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mesh.artifacts import (
    COLUMNS,
    expected,
    write_counting,
    write_endless,
    write_mesh,
    write_one_rank,
    write_unequal,
)
from tests.support.mesh.processes import SECONDS, await_end, await_steps, finished, left_behind, rank_process, started
from tests.support.suite.randomness import RANDOM

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
WAIT = 20
"""Seconds that ranks wait for each other where a test waits that out: others may be late on a busy machine."""
Ended = tuple[int, str, str]
"""Exit code, stdout and stderr of a command line."""


@pytest.fixture
def x(tmp_path: Path) -> np.ndarray[Any, Any]:
    """Random values, also in ``x.npy``."""
    values = RANDOM.standard_normal(COLUMNS).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    return values


def diagnostics(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("error")]


def by_hand(rank: int, port: int) -> tuple[str, ...]:
    """Returns what starts one of two ranks as a launcher would; rank 0 keeps the store."""
    places = [f"RANK={rank}", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}"]
    return ("env", *places, sys.executable, "-m", "lowerkit")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stopped(folder: Path) -> Ended:
    path = write_endless(folder / "two.lk")
    options = ["--nproc", 2, "--rank-deadline", WAIT, "--input", f"x:{COLUMNS}:f32"]
    with started(folder, "run", path, *options) as process:
        await_steps(folder, 2)
        os.kill(rank_process(folder, 1), signal.SIGSTOP)
        out, err = process.communicate(timeout=SECONDS)
        await_end(folder)
    return process.returncode, out, err


def absent(folder: Path) -> Ended:
    path = write_mesh(folder / "three.lk", 3)
    options = ["--nproc", 3, "--rank-deadline", WAIT, "--input", f"x:{COLUMNS}:f32"]
    with started(folder, "run", path, *options) as process:
        os.kill(rank_process(folder, 2), signal.SIGSTOP)  # it has just begun to import
        out, err = process.communicate(timeout=SECONDS)
        await_end(folder)
    return process.returncode, out, err


def alone(folder: Path, rank: int) -> Ended:
    given = ["run", write_mesh(folder / "two.lk"), "--input", f"x:{COLUMNS}:f32", "--rank-deadline", WAIT]
    return finished(folder, *given, command=by_hand(rank, free_port()))


WAITING: dict[str, Callable[[Path], Ended]] = {
    "stopped": stopped,
    "absent": absent,
    "rank 0 alone": partial(alone, rank=0),
    "rank 1 alone": partial(alone, rank=1),
}


@pytest.fixture(scope="module", autouse=True)
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Any]]:
    """Starts, where a test wants to know their ends, what waits for a deadline: it waits beside the other tests.

    A recording must know which test runs what: there each runs its own.
    """
    mine = (item for item in request.session.items if item.path == request.path)
    wanted = any("waited_out" in getattr(item, "fixturenames", ()) for item in mine)
    if not wanted or request.config.getoption("--record"):
        yield {}
        return
    with ThreadPoolExecutor(len(WAITING)) as pool:
        yield {name: pool.submit(run, tmp_path_factory.mktemp("waiting")) for name, run in WAITING.items()}


@pytest.fixture
def waited_out(ends: dict[str, Any], tmp_path: Path) -> Callable[[str], Ended]:
    """Returns the end of one of :data:`WAITING`."""
    return lambda name: ends[name].result(SECONDS) if name in ends else WAITING[name](tmp_path)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_are_started(ranks: int, tmp_path: Path, x: np.ndarray[Any, Any]) -> None:
    path, out = write_mesh(tmp_path / "m.lk", ranks), tmp_path / "out"
    given = f"x=@{tmp_path}/x.npy"
    code, printed, err = finished(tmp_path, "run", path, "--nproc", ranks, "--input", given, "-o", out, "--json")
    assert code == 0 and err == "" and left_behind(tmp_path) == [], err
    document = json.loads(printed)
    assert document["outputs"] == [{"name": "y", "dtype": "f32", "shape": [COLUMNS], "file": str(out / "y.npy")}]
    np.testing.assert_allclose(np.load(out / "y.npy"), expected(x, ranks), rtol=1e-6)


def test_simulated_ranks_give_the_same_bytes(tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "two.lk")
    for way in ("--nproc", "--sim"):
        given = ["--input", f"x:{COLUMNS}:f32", "--seed", 7]
        code, _, err = finished(tmp_path, "run", path, way, 2, *given, "-o", tmp_path / way)
        assert code == 0, err
    first, second = (np.load(tmp_path / way / "y.npy") for way in ("--nproc", "--sim"))
    assert first.tobytes() == second.tobytes()


def test_outputs_that_differ_between_simulated_ranks_are_named(tmp_path: Path) -> None:
    path = write_unequal(tmp_path / "three.lk", 3)
    code, _, err = finished(tmp_path, "run", path, "--sim", 3, "--input", f"x:{COLUMNS}:f32", "-o", tmp_path / "out")
    assert code == 6 and not (tmp_path / "out").exists()
    assert f"error[LK6003]: output 'y' of rank 1 differs from rank 0's in {COLUMNS} of {COLUMNS} elements" in err
    assert "output 'y' of rank 2 differs" in err


@pytest.mark.parametrize(
    ("ranks", "options", "said"),
    [
        (2, ["--nproc", 3], "--nproc is 3, and PATH is for a mesh tp=2"),
        (2, ["--sim", 4], "--sim is 4, and PATH is for a mesh tp=2"),
        (2, ["--nproc", 2, "--sim", 2], "--nproc 2 and --sim 2 exclude each other"),
        (2, ["--sim", 2, "--memory-limit", "1GiB"], "--memory-limit is no option of --sim"),
        (0, ["--memory-limit", "much"], "--memory-limit is 'much', no number"),
        (2, ["--nproc", 0], "--nproc is 0"),
        (0, ["--nproc", 2], "--nproc is 2, and PATH is for one rank"),
        (0, ["--sim", 2], "--sim is 2, and PATH is for one rank"),
    ],
)
def test_options_that_do_not_fit_are_refused(ranks: int, options: list[Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.lk"
    if ranks:
        write_mesh(path, ranks)
    else:
        write_one_rank(path)
    code, _, err = finished(tmp_path, "run", path, "--input", f"x:{COLUMNS}:f32", *options)
    assert code == 2 and said.replace("PATH", str(path)) in err and "hint" in err, err


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_limit_of_memory_is_that_of_each_rank(ranks: int, tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "m.lk", ranks) if ranks else write_one_rank(tmp_path / "m.lk")
    way = ["--nproc", ranks] if ranks else []
    given = ["run", path, *way, "--input", f"x:{COLUMNS}:f32", "--memory-limit"]
    code, printed, err = finished(tmp_path, *given, "1MiB")
    assert code == 7 and printed == "" and len(diagnostics(err)) == 1, err
    assert diagnostics(err)[0].startswith("error[LK7002]: ") and "a limit of 1.0 MB is less than the" in err
    code, _, err = finished(tmp_path, *given, "8GiB")
    assert code == 0, err


def test_a_mesh_without_ranks_names_the_ways(tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "two.lk")
    code, _, err = finished(tmp_path, "run", path, "--input", f"x:{COLUMNS}:f32")
    assert code and len(diagnostics(err)) == 1 and "--nproc 2" in err and "--sim 2" in err, err


@pytest.mark.parametrize(
    ("given", "code"), [("x=@missing.npy", "LK1001"), ("z:4:f32", "LK1003"), ("x:5:f32", "LK8004")]
)
def test_what_is_wrong_on_all_ranks_is_said_once(given: str, code: str, tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "two.lk")
    status, printed, err = finished(tmp_path, "run", path, "--nproc", 2, "--input", given, "--json")
    assert status in (2, 3, 8) and printed == ""
    assert len(diagnostics(err)) == 1 and diagnostics(err)[0].startswith(f"error[{code}]: "), err
    assert "rank" not in diagnostics(err)[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_is_named_and_the_others_end(rank: int, tmp_path: Path) -> None:
    path = write_endless(tmp_path / "two.lk")
    with started(tmp_path, "run", path, "--nproc", 2, "--input", f"x:{COLUMNS}:f32") as process:
        await_steps(tmp_path, 2)
        os.kill(rank_process(tmp_path, rank), signal.SIGKILL)
        out, err = process.communicate(timeout=SECONDS)
        await_end(tmp_path)
    assert process.returncode == 8 and out == ""
    assert diagnostics(err) == [f"error[LK8009]: rank {rank} was killed by SIGKILL"]
    assert left_behind(tmp_path) == []
    (detail,) = [line for line in err.splitlines() if line.startswith("  - ")]
    assert (
        detail.startswith(f"  - rank {1 - rank}: ") and f"rank {rank}" in detail and detail.endswith("(at model.py:7)")
    ), err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_rank_outlives_the_command(number: signal.Signals, code: int, tmp_path: Path) -> None:
    path = write_endless(tmp_path / "two.lk")
    with started(tmp_path, "run", path, "--nproc", 2, "--input", f"x:{COLUMNS}:f32") as process:
        await_steps(tmp_path, 2)
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
        await_end(tmp_path)
    assert process.returncode == code
    assert err.strip() == ("interrupted" if number == signal.SIGINT else "")
    assert number == signal.SIGKILL or left_behind(tmp_path) == []


def test_states_are_of_a_rank(tmp_path: Path) -> None:
    path = write_counting(tmp_path / "two.lk")

    def run(way: str) -> tuple[int, str, str]:
        given = ["--input", f"x:{COLUMNS}:f32", "--state", tmp_path / "states"]
        return finished(tmp_path, "run", path, way, 2, *given)

    for turn in (1, 2):
        code, _, err = run("--nproc")
        assert code == 0, err
        parts = [np.load(tmp_path / "states" / f"rank{rank}" / "sum.npy") for rank in range(2)]
        # The sum of the rank's own row, once a run: a state that a rank took from another would show.
        np.testing.assert_array_equal(parts, turn * np.arange(2 * COLUMNS, dtype=np.float32).reshape(2, COLUMNS))
    (tmp_path / "states" / "rank1").rename(tmp_path / "rank1")
    code, _, err = run("--nproc")
    assert code == 3 and "rank0, not the states of the 2 ranks" in err, err
    code, _, err = run("--sim")
    assert code == 2 and "--state" in err


@pytest.mark.slow
def test_ranks_of_torchrun(tmp_path: Path, x: np.ndarray[Any, Any]) -> None:
    path, out = write_mesh(tmp_path / "two.lk"), tmp_path / "out"
    given = ["run", path, "--input", f"x=@{tmp_path}/x.npy", "-o", out, "--json"]
    code, printed, err = finished(tmp_path, *given, command=(*TORCHRUN, "--nproc-per-node", "2", "-m", "lowerkit"))
    assert code == 0, err
    assert [one["name"] for one in json.loads(printed)["outputs"]] == ["y"]
    np.testing.assert_allclose(np.load(out / "y.npy"), expected(x), rtol=1e-6)


@pytest.mark.slow
def test_another_number_of_ranks_of_torchrun_is_refused(tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "two.lk")
    script = str(Path(sys.executable).parent / "lowerkit")
    command = (*TORCHRUN, "--nproc-per-node", "3", "--no-python", script)
    code, _, err = finished(tmp_path, "run", path, "--input", f"x:{COLUMNS}:f32", command=command)
    assert code and f"WORLD_SIZE is 3, and {path} is for a mesh tp=2" in err, err


@pytest.mark.slow
@pytest.mark.exhaustive  # ranks of mpirun and of a script are refused by the same comparison
def test_ranks_of_a_launcher_with_other_artifacts_are_refused(tmp_path: Path) -> None:
    """Variables set by hand: rank 0 keeps the store, as with torchrun --rdzv-backend=static."""
    paths = [write_mesh(tmp_path / "a.lk"), write_mesh(tmp_path / "b.lk", producer={"lowerkit": "other"})]
    script = tmp_path / "rank.sh"
    script.write_text(
        f'#!/bin/sh\ncase "$RANK" in 0) f={paths[0]};; 1) f={paths[1]};; esac\n'
        f'exec {sys.executable} -m lowerkit run "$f" --input x:{COLUMNS}:f32\n'
    )
    script.chmod(0o700)
    code, out, err = finished(tmp_path, command=(*TORCHRUN, "--nproc-per-node", "2", "--no-python", str(script)))
    assert code and out == ""
    said = diagnostics(err)
    assert any("rank 0: rank 1 has model" in line and "b.lk" in line and "this rank has" in line for line in said), err
    assert all(line.startswith("error[LK8022]") for line in said), err


@pytest.mark.slow
def test_ranks_of_a_launcher_without_a_store_of_its_own(tmp_path: Path, x: np.ndarray[Any, Any]) -> None:
    path, port = write_mesh(tmp_path / "two.lk"), free_port()
    given = ["run", path, "--input", f"x=@{tmp_path}/x.npy", "-o", tmp_path / "out"]
    (others := tmp_path / "others").mkdir()
    with started(others, *given, command=by_hand(1, port)) as other:
        code, _, err = finished(tmp_path, *given, command=by_hand(0, port))
        out, other_err = other.communicate(timeout=SECONDS)
    assert code == 0 and other.returncode == 0 and out == "", err + other_err
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), expected(x), rtol=1e-6)


@pytest.mark.slow
def test_a_launcher_is_heeded_for_a_mesh_alone(tmp_path: Path) -> None:
    path = write_one_rank(tmp_path / "one.lk")
    command = ("env", "RANK=1", "WORLD_SIZE=2", sys.executable, "-m", "lowerkit")
    code, printed, err = finished(tmp_path, "run", path, "--input", f"x:{COLUMNS}:f32", "--json", command=command)
    assert code == 0, err
    assert json.loads(printed)["outputs"][0]["name"] == "y"


# Last, as what they ask for has been waiting since the first test.
@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named_by_the_one_that_waits(waited_out: Callable[[str], Ended]) -> None:
    code, _, err = waited_out("stopped")
    assert code == 8
    (diagnostic,) = diagnostics(err)
    assert diagnostic.startswith("error[LK8008]: ") and "at rank 0 of tp=2" in diagnostic
    assert "not arrived: rank 1" in diagnostic


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named(waited_out: Callable[[str], Ended]) -> None:
    code, out, err = waited_out("absent")
    assert code == 8 and out == ""
    (diagnostic,) = diagnostics(err)
    assert diagnostic.startswith("error[LK8007]: ") and f"rank 2 of 3 did not come within {WAIT} s" in diagnostic, err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "said"),
    [(0, f"rank 1 of 2 did not come within {WAIT} s"), (1, "the store at 127.0.0.1 port [0-9]+ does not")],
)
def test_a_rank_that_no_launcher_started_is_named(rank: int, said: str, waited_out: Callable[[str], Ended]) -> None:
    code, _, err = waited_out(f"rank {rank} alone")
    (diagnostic,) = diagnostics(err)
    assert code == 8 and diagnostic.startswith("error[LK8007]: ") and f"rank {rank}: " in diagnostic
    assert re.search(said, diagnostic), err
