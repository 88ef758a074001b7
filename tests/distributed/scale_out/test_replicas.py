"""`lowerkit.load(path, replicas=N)`: batches cut into shares, run at the same time, and put together."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import lowerkit
from lowerkit.errors import RuntimeFault, UnsupportedError, UsageError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.conditions import Condition
from lowerkit.runtimes.manifest import Dim, Guard, Signature
from lowerkit.runtimes.replicas.batch import Batch
from tests.support.handmade_code import f32
from tests.support.mesh.artifacts import expected, write_mesh
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE
from tests.support.scale_out.artifacts import numbers, rows_manifest, write_counter, write_fixed, write_rows


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_every_number_of_rows_gives_what_one_session_gives(replicas: int, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "m.lk")
    one, several = lowerkit.load(path, threads=1), lowerkit.load(path, replicas=replicas, threads=1)
    assert several.replicas == replicas and several.threads == 1 and several.signature == one.signature
    for rows in range(1, 17):
        x, z = numbers(rows), numbers(rows, seed=1)
        (y,) = several.run(x, z=z)
        assert np.array_equal(y, one.run(x, z)[0]) and np.array_equal(y, x + z), rows
        assert np.array_equal(several(x, z), y)


def test_shares_differ_by_one_row_and_run_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = lowerkit.load(write_rows(tmp_path / "m.lk"), replicas=3, threads=1)
    together = threading.Barrier(3)
    shares: dict[Any, int] = {}

    def run(session: Any, *inputs: Any) -> list[Any]:
        together.wait(PATIENCE)  # broken unless all replicas are within their runs
        shares[session] = len(inputs[0])
        return [inputs[0] + inputs[1]]

    monkeypatch.setattr(lowerkit.Session, "run", run)
    x = numbers(8)
    (y,) = several.run(x, x)
    assert sorted(shares.values()) == [2, 3, 3] and np.array_equal(y, x + x)


def test_a_batch_larger_than_the_model_takes_runs_in_turns(tmp_path: Path) -> None:
    several = lowerkit.load(write_rows(tmp_path / "m.lk", most=4), replicas=2, threads=1)
    x = numbers(19)
    assert np.array_equal(several.run(x, x)[0], x + x)
    with pytest.raises(RuntimeFault, match=r"dim 'm' is 65"):
        several.run(numbers(3, 65), numbers(3, 65))


def test_shares_obey_ranges_and_conditions() -> None:
    program = rows_manifest().programs[0]
    signature = replace(program.signature, dims=[Dim("n", 3, 16), Dim("m", 1, 64)])
    batch = Batch.of(replace(program, signature=signature))
    assert [[len(part[0]) for part in batch.cut([numbers(rows)] * 2, 4)] for rows in (3, 5, 7, 9, 12)] == [
        [3], [5], [3, 4], [3, 3, 3], [3, 3, 3, 3],
    ]  # fmt: skip
    even: Condition = ("eq", ("mod", "n", 2), 0)
    batch = Batch.of(replace(program, signature=replace(program.signature, guards=[Guard(even)])))
    assert [[len(part[0]) for part in batch.cut([numbers(rows)] * 2, 3)] for rows in (2, 6, 8)] == [
        [2],
        [2, 2, 2],
        [4, 4],
    ]
    with pytest.raises(RuntimeFault, match="mod"):
        batch.cut([numbers(3)] * 2, 3)


def test_inputs_without_the_batch_go_to_every_share() -> None:
    signature = Signature(
        inputs=[f32("table", 5, "m"), f32("x", "n", 4), f32("s")], outputs=[f32("y", "n")], dims=[Dim("n"), Dim("m")]
    )
    batch = Batch.of(replace(rows_manifest().programs[0], signature=signature))
    assert batch.dim == "n" and batch.split == (False, True, False)
    table, scalar = numbers(5), np.float32(3) * np.ones((), np.float32)
    parts = batch.cut([table, numbers(4), scalar], 2)
    assert [len(part[1]) for part in parts] == [2, 2] and all(part[0] is table and part[2] is scalar for part in parts)


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        ([f32("x", 4)], [f32("y", 4)], "no input has a symbolic first dim: the inputs are x: f32[4]"),
        ([f32("x", "n")], [f32("y")], "the output y: f32[] has no first dim 'n'"),
        ([f32("x", "n")], [f32("y", ("mul", 2, "n"))], "'n' stands elsewhere than first in the output"),
        ([f32("x", "n", "n")], [f32("y", "n")], "'n' stands elsewhere than first in the input"),
        ([f32("x", "n"), f32("z", 3, "n")], [f32("y", "n")], "'n' stands elsewhere than first in the input z"),
        ([f32("x", "n")], [], "it has no outputs"),
    ],
)
def test_why_a_model_has_no_batch(inputs: list[Any], outputs: list[Any], said: str) -> None:
    signature = Signature(inputs, outputs, dims=[Dim("n")])
    with pytest.raises(UnsupportedError) as caught:
        Batch.of(replace(rows_manifest().programs[0], signature=signature))
    assert caught.value.code == "LK4008" and any(said in detail for detail in caught.value.details), caught.value


def test_states_and_meshes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="it has the state 'sum': each part would go on with another value"):
        lowerkit.load(write_counter(tmp_path / "state.lk"), replicas=2)
    with pytest.raises(UsageError, match="LK8021"):
        lowerkit.load(write_mesh(tmp_path / "two.lk"), replicas=2)
    with pytest.raises(UnsupportedError, match="no input has a symbolic first dim"):
        lowerkit.load(write_fixed(tmp_path / "fixed.lk"), replicas=2)


def test_what_is_asked_for_wrongly(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "m.lk")
    with pytest.raises(UsageError, match="replicas is 0"):
        lowerkit.load(path, replicas=0)
    several = lowerkit.load(path, replicas=2, threads=1)
    with pytest.raises(RuntimeFault, match="LK8004"):
        several.run(numbers(3), numbers(4))
    with pytest.raises(RuntimeFault, match="input 'z' is missing"):
        several.run(numbers(3))
    assert np.array_equal(several.run(numbers(3), numbers(3))[0], 2 * numbers(3))


def test_an_error_of_one_share_is_the_error_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = lowerkit.load(write_rows(tmp_path / "m.lk"), replicas=2, threads=1)

    def run(session: Any, *inputs: Any) -> list[Any]:
        raise RuntimeFault("LK8015", f"index {inputs[0][0, 0]:g}")

    monkeypatch.setattr(lowerkit.Session, "run", run)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    with pytest.raises(RuntimeFault, match="index 0"):
        several.run(x, x)


def test_the_child_of_a_fork_goes_on(tmp_path: Path) -> None:
    several = lowerkit.load(write_rows(tmp_path / "m.lk"), replicas=2, threads=1)
    x = numbers(5)
    several.run(x, x)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(several.run(x, x)[0], x + x) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def of_a_group(rank: int, size: int, folder: str) -> None:
    group = Group.join(DirectoryStore(f"{folder}/store"), "world", rank, size, timeout=PATIENCE)
    path = f"{folder}/two.lk"
    with pytest.raises(UsageError, match="replicas=2 and a group exclude each other"):
        lowerkit.load(path, replicas=2, group=group)  # pyright: ignore[reportCallIssue, reportArgumentType]
    session = lowerkit.load(path, group=group, threads=1)
    x = np.arange(4, dtype=np.float32)
    assert np.array_equal(session.run(x)[0], expected(x))
    group.close()


def test_each_rank_loads_with_its_group(tmp_path: Path) -> None:
    write_mesh(tmp_path / "two.lk")
    run_processes(of_a_group, 2, str(tmp_path))
