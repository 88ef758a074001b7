"""Ranks of a mesh that mpirun started: outputs, refusals, a rank that is killed, one host and several."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import LowerkitError, UsageError
from lowerkit.launching import mpi
from lowerkit.launching.join import join_launched, launched_place
from lowerkit.launching.mpi import MpiPlace, meet
from lowerkit.launching.torchrun import LauncherPlace
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from tests.support.mesh.artifacts import COLUMNS, expected, write_endless, write_mesh
from tests.support.mesh.processes import ROOT, await_value, finished, left_behind, running, started
from tests.support.mpi_rank import MISSING, MPIRUN
from tests.support.ranks import PATIENCE
from tests.support.suite.randomness import RANDOM

needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason=MISSING)
RANK = (sys.executable, "-m", "lowerkit")
GIVEN = ("--input", f"x:{COLUMNS}:f32")


def mpirun(size: int, *command: str) -> tuple[str, ...]:
    options = ("--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", str(size))
    return (str(MPIRUN), *options, *command)


@needs_mpirun
@pytest.mark.slow
def test_ranks_of_mpirun(tmp_path: Path) -> None:
    path, out = write_mesh(tmp_path / "two.lk"), tmp_path / "out"
    x = RANDOM.standard_normal(COLUMNS).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    given = ["run", path, "--input", f"x=@{tmp_path}/x.npy", "-o", out, "--json"]
    code, printed, err = finished(tmp_path, *given, command=mpirun(2, *RANK))
    assert code == 0 and err == "" and left_behind(tmp_path) == [], err
    assert [one["name"] for one in json.loads(printed)["outputs"]] == ["y"]
    np.testing.assert_allclose(np.load(out / "y.npy"), expected(x), rtol=1e-6)


@needs_mpirun
@pytest.mark.slow
def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "two.lk")
    code, out, err = finished(tmp_path, "run", path, *GIVEN, command=mpirun(3, *RANK))
    assert code == 2 and out == "" and f"mpirun -n is 3, and {path} is for a mesh tp=2" in err, err


@needs_mpirun
@pytest.mark.slow
def test_other_artifacts_are_refused(tmp_path: Path) -> None:
    paths = [write_mesh(tmp_path / "a.lk"), write_mesh(tmp_path / "b.lk", producer={"lowerkit": "other"})]
    script = tmp_path / "rank.sh"
    script.write_text(
        f'#!/bin/sh\ncase "$OMPI_COMM_WORLD_RANK" in 0) f={paths[0]};; 1) f={paths[1]};; esac\n'
        f'exec {sys.executable} -m lowerkit run "$f" {" ".join(GIVEN)}\n'
    )
    script.chmod(0o700)
    code, out, err = finished(tmp_path, command=mpirun(2, str(script)))
    assert code and out == "" and "error[LK8022]" in err and "has model" in err, err


@needs_mpirun
@pytest.mark.slow
def test_a_rank_that_is_killed_ends_all(tmp_path: Path) -> None:
    path = write_endless(tmp_path / "two.lk")
    with started(tmp_path, "run", path, *GIVEN, command=mpirun(2, *RANK)) as process:
        ranks = await_value(lambda: _mapping(tmp_path, path, 2), "ranks did not load the artifact")
        os.kill(ranks[0], signal.SIGKILL)
        out, _ = process.communicate(timeout=PATIENCE)
        await_value(lambda: not running(tmp_path), "processes are left")
    assert process.returncode and out == ""


def _mapping(mark: Path, path: Path, count: int) -> list[int] | None:
    """Returns the processes that have mapped a file, once there are as many."""

    def maps(process: int) -> str:
        try:
            return Path(f"/proc/{process}/maps").read_text()
        except OSError:
            return ""

    found = [one for one in running(mark) if str(path) in maps(one)]
    return found if len(found) == count else None


@needs_mpirun
@pytest.mark.slow
@pytest.mark.exhaustive  # test_page.py runs the same script under both
def test_one_script_under_both_launchers(tmp_path: Path) -> None:
    path, script = write_mesh(tmp_path / "two.lk"), str(ROOT / "docs/distributed/mesh_rank.py")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    printed: list[str] = []
    for launcher in (torchrun, mpirun(2, sys.executable, "-m", "mpi4py")):
        code, out, err = finished(tmp_path, path, command=(*launcher, script))
        assert code == 0, err
        printed.append(out)
    assert printed[0] == printed[1] and printed[0].startswith("request 0: sum ") and printed[0].count("\n") == 3


@pytest.mark.parametrize("names", mpi.VARIABLES)
def test_variables_name_the_place(names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", *(name for pair in mpi.VARIABLES for name in pair)):
        monkeypatch.delenv(variable, raising=False)
    assert launched_place() is None
    with pytest.raises(UsageError, match="no launcher started this process"):
        join_launched("two.lk")
    monkeypatch.setenv(names[0], "1")
    with pytest.raises(UsageError, match=f"{names[0]} is '1' and {names[1]} is ''"):
        launched_place()
    monkeypatch.setenv(names[1], "2")
    assert launched_place() == MpiPlace(1, 2)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert launched_place() == LauncherPlace(0, 4, "127.0.0.1", 1)  # torchrun under mpirun
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv(names[1], "1")
    with pytest.raises(UsageError, match="expected a rank and how many there are"):
        launched_place()


class World:
    """What :func:`meet` needs of a communicator, for ranks that are threads; what ranks give lies in ``shared``."""

    def __init__(self, size: int, rank: int, shared: dict[str, bytes]) -> None:
        self._size, self._rank, self._shared, self._calls = size, rank, shared, 0

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size

    def Iallgather(self, own: bytes, target: bytearray) -> World:
        self._calls += 1
        self._shared[f"{self._calls} of {self._rank}"] = own
        return self._from(target, [f"{self._calls} of {rank}" for rank in range(self._size)])

    def Ibcast(self, data: bytearray) -> World:
        if self._rank == 0:
            self._shared["invitation"] = bytes(data)
        return self._from(data, ["invitation"])

    def _from(self, target: bytearray, names: list[str]) -> World:
        self._target, self._names = target, names
        return self

    def Test(self) -> bool:
        if not all(name in self._shared for name in self._names):
            return False
        self._target[:] = b"".join(self._shared[name] for name in self._names)
        return True


@pytest.mark.parametrize("hosts", [1, 2])
def test_ranks_meet_on_one_host_and_on_several(hosts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second host is this one under another name: its address is that of loopback, the first one leads nowhere."""
    names = {f"rank {rank}": f"host {rank % hosts}" for rank in range(2)}
    monkeypatch.setattr(
        "lowerkit.runtimes.collective.rendezvous.host.host_identity", lambda: names[threading.current_thread().name]
    )
    shared: dict[str, bytes] = {}
    results: dict[int, Any] = {}

    def rank_main(rank: int) -> None:
        store, invitation = meet(World(2, rank, shared), 20.0, ["192.0.2.254", "127.0.0.1"])
        monkeypatch.undo()  # the rendezvous asks for the identity, too
        token = invitation["token"].encode()
        group = Group.join(store, "world", rank, 2, RendezvousOptions(token=token, timeout=PATIENCE), timeout=PATIENCE)
        results[rank] = (group.run(group.calls.all_reduce(np.full(1, rank + 1.0)))[0], set(invitation))
        group.close()

    ranks = [threading.Thread(target=rank_main, args=(rank,), name=f"rank {rank}") for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(PATIENCE)
    keys = {"folder", "token"} if hosts == 1 else {"host", "hosts", "port", "nonce", "token"}
    assert results == {0: (3.0, keys), 1: (3.0, keys)}


def test_ranks_that_do_not_come_and_stores_that_cannot_be_reached() -> None:
    with pytest.raises(LowerkitError, match="rank 1: not all 3 ranks of mpirun came within 0.1 s") as caught:
        meet(World(3, 1, {"1 of 0": bytes(32)}), 0.1)
    assert caught.value.code == "LK8007"
    unreachable = {"hosts": ["127.0.0.1", "127.0.0.2"], "port": 1, "nonce": ""}
    for invitation, said in (
        (unreachable, "rank 0 finds it at 127.0.0.2\n  - rank 1 finds it at none"),
        ({"failure": "no space"}, "rank 0 could not make a store: no space"),
    ):
        told = {"1 of 0": bytes(32), "invitation": json.dumps(invitation).encode(), "2 of 0": b"\2" + bytes(7)}
        with pytest.raises(LowerkitError, match=said):
            meet(World(2, 1, told), 5.0)
