"""Programs for a mesh in a process group or DeviceMesh of torch.distributed whose backend is gloo."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import lowerkit
from lowerkit.errors import LowerkitError, UsageError
from lowerkit.runtimes.collective.failures import CollectiveFault
from tests.support.mesh.artifacts import COLUMNS, expected, write_endless, write_mesh
from tests.support.mesh.engine_artifacts import write_all, write_model
from tests.support.mesh.engine_ranks import FUNCTIONS, TOGETHER, Ranks, X, forked, verdicts
from tests.support.mesh.several_axes import expected as expected_parts
from tests.support.mesh.several_axes import write_gathered
from tests.support.processes import collect, run_processes, start_ranks
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group

OF_SIZE = {2: [*FUNCTIONS[2], forked], 4: FUNCTIONS[4]}
SIDE_BY_SIDE = {2: [[*TOGETHER[2][0], forked], *TOGETHER[2][1:]], 4: TOGETHER[4]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Returns a folder with artifacts for each number of ranks."""
    found: dict[int, Path] = {}
    for size in OF_SIZE:
        folder = found[size] = tmp_path_factory.mktemp(f"gloo{size}ranks")
        (folder / "native").mkdir(mode=0o700)
        write_all(folder, size)
        write_model(folder, size)
    return found


def run_functions(rank: int, size: int, folder: str, number: int) -> dict[str, str]:
    (meeting := Path(folder) / f"group{number}").mkdir(exist_ok=True)
    with process_group(rank, size, str(meeting), backend="gloo"):
        return verdicts(Ranks(rank, size, Path(folder), dist.group.WORLD), SIDE_BY_SIDE[size][number])


@pytest.fixture(scope="module")
def results(folders: dict[int, Path]) -> dict[tuple[int, str], list[str]]:
    """Returns for each function what it raised on each rank. The groups run side by side: some wait for deadlines."""
    found: dict[tuple[int, str], list[str]] = {}
    groups = [(size, number) for size in folders for number in range(len(SIDE_BY_SIDE[size]))]
    begun = [start_ranks(run_functions, size, str(folders[size]), number) for size, number in groups]
    for (size, number), ranks in zip(groups, begun, strict=True):
        by_rank = collect(ranks, 1.5 * PATIENCE)
        for function in SIDE_BY_SIDE[size][number]:
            name = function.__name__
            found[size, name] = [
                ended.get(name, "was not reached") if isinstance(ended, dict) else str(ended) for ended in by_rank
            ]
    return found


@pytest.mark.parametrize(("size", "name"), [(size, each.__name__) for size in OF_SIZE for each in OF_SIZE[size]])
def test_ranks(size: int, name: str, results: dict[tuple[int, str], list[str]]) -> None:
    assert results[size, name] == [""] * size, "\n".join(results[size, name])


def test_who_is_late_is_named(folders: dict[int, Path], results: dict[tuple[int, str], list[str]]) -> None:
    assert results[2, "late"] == ["", ""]
    text = (folders[2] / "late.text.0").read_text()
    assert text.startswith("error[LK8008]") and "rank 1 did not come within 4 s" in text, text


def dies(rank: int, size: int, folder: str, path: str) -> str:
    """Ranks reduce for ever; rank 1 is killed meanwhile."""
    with process_group(rank, size, folder, backend="gloo"):
        session = lowerkit.load(path, group=dist.group.WORLD, threads=1, deadline=2 * PATIENCE)
        if rank == 1:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        begun = time.monotonic()
        with pytest.raises(CollectiveFault) as caught:
            session.run(X)
        assert time.monotonic() - begun < PATIENCE
        with pytest.raises(CollectiveFault, match="LK8011.*cannot begin at rank"):
            session.run(X)
        return caught.value.render()


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_that_is_killed_is_named(size: int, tmp_path: Path) -> None:
    path = write_endless(tmp_path / "model.lk", size)
    texts = collect(start_ranks(dies, size, str(tmp_path), str(path)), 2 * PATIENCE)
    assert texts.pop(1) == -signal.SIGKILL
    for rank, text in zip((0, 2, 3), texts, strict=False):
        assert text.startswith(("error[LK8009]", "error[LK8011]")), text
        assert f"all_reduce failed in step 'sum_over_ranks' at rank {rank} of tp={size}: all_reduce #" in text, text
        assert f"rank 1 of tp={size} has ended (no process)" in text or "rank 1 has ended (no process)" in text, text
        assert "model.py:7" in text, text


def interrupted(rank: int, size: int, folder: str, path: str) -> str:
    """Rank 0 is interrupted as it computes: the other is told, long before its deadline."""
    with process_group(rank, size, folder, backend="gloo"):
        session = lowerkit.load(path, group=dist.group.WORLD, threads=1, deadline=2 * PATIENCE)
        begun = time.monotonic()
        if rank == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                session.run(X)
            return ""
        with pytest.raises(CollectiveFault) as caught:
            session.run(X)
        assert time.monotonic() - begun < PATIENCE
        return caught.value.render()


def test_an_interruption_ends_the_run_of_all(tmp_path: Path) -> None:
    path = write_endless(tmp_path / "model.lk")
    _, text = run_processes(interrupted, 2, str(tmp_path), str(path))
    assert text.startswith("error[LK8011]") and "rank 0 of tp=2 ended its run: KeyboardInterrupt" in text, text


def in_device_mesh(rank: int, size: int, folder: str, path: str) -> None:
    with process_group(rank, size, folder, backend="gloo"):
        wanted = expected_parts({"dp": 2, "tp": 2}, ("tp", "dp"))
        for names in (("dp", "tp"), None):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
            session = lowerkit.load(path, group=mesh, threads=1, deadline=PATIENCE)
            np.testing.assert_array_equal(session.run(np.ones(1, np.float32))[0], wanted)
        with pytest.raises(UsageError, match=r"LK8021.*the DeviceMesh is tp=2,dp=2, and .* for a mesh dp=2,tp=2"):
            lowerkit.load(path, group=init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "dp")), deadline=PATIENCE)
        # Along one axis of it: rank 0 and 2, 1 and 3.
        pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "other"))["tp"]
        session = lowerkit.load(Path(path).with_name("two.lk"), group=pairs, threads=1, deadline=PATIENCE)
        np.testing.assert_allclose(session.run(X)[0], expected(X), rtol=1e-6)
        assert session.group is not None and session.group.rank == rank // 2
        halves: list[Any] = [dist.new_group([0, 3]), dist.new_group([1, 2])]
        session = lowerkit.load(
            Path(path).with_name("two.lk"), group=halves[rank in (1, 2)], threads=1, deadline=PATIENCE
        )
        np.testing.assert_allclose(session.run(X)[0], expected(X), rtol=1e-6)
        with pytest.raises(UsageError, match="LK1010.*that this process is in"):
            lowerkit.load(path, group=halves[rank not in (1, 2)])


def test_device_meshes_and_groups_of_some_ranks(tmp_path: Path) -> None:
    path = write_gathered(tmp_path / "model.lk", {"dp": 2, "tp": 2}, ("tp", "dp"))
    write_mesh(tmp_path / "two.lk")
    run_processes(in_device_mesh, 4, str(tmp_path), str(path))


def in_own_backend(rank: int, size: int, folder: str, path: str) -> None:
    with process_group(rank, size, folder):
        session = lowerkit.load(path, group=dist.group.WORLD, threads=1)
        assert session.group is dist.group.WORLD.group  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        np.testing.assert_allclose(session.run(X)[0], expected(X), rtol=1e-6)
        with pytest.raises(CollectiveFault, match=r"LK8022.*has model .*(model|other).lk"):
            lowerkit.load(Path(path).with_name("other.lk") if rank else path, group=dist.group.WORLD)
        with pytest.raises(UsageError, match="LK1009.*deadline=3.0 is for a group of mpi4py or torch.distributed"):
            lowerkit.load(path, group=dist.group.WORLD, deadline=3.0)


def test_the_backend_lowerkit_is_the_group_behind_it(tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "model.lk")
    write_mesh(tmp_path / "other.lk", producer={"lowerkit": "other"})
    run_processes(in_own_backend, 2, str(tmp_path), str(path))


def test_a_backend_that_moves_no_memory_of_cpus_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write_mesh(tmp_path / "model.lk", 1)
    with process_group(0, 1, str(tmp_path), backend="gloo"):
        for config, said in (("cuda:nccl", "has no backend"), ("cpu:ucc,cuda:ucc", "has the backend ucc")):
            monkeypatch.setattr(dist, "get_backend_config", lambda _, config=config: config)
            with pytest.raises(UsageError, match=f"LK1010.*{said} for memory of CPUs"):
                lowerkit.load(path, group=dist.group.WORLD)
    with pytest.raises(LowerkitError, match="LK1009.*deadline=1.0"):
        lowerkit.load(path, deadline=1.0)  # pyright: ignore[reportCallIssue]
    assert X.size == COLUMNS
