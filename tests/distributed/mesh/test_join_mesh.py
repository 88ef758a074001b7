"""Ranks that a script starts: `join_mesh` in processes of their own, around one store."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.cpu.topology import default_threads
from lowerkit.runtimes.mesh.ranks import join_mesh
from tests.support.mesh.artifacts import COLUMNS, expected, write_mesh, write_one_rank
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE
from tests.support.suite.randomness import RANDOM

pytestmark = pytest.mark.usefixtures("few_objects")


def serve(rank: int, size: int, paths: list[str], folder: str, x: np.ndarray[Any, Any]) -> Any:
    session = join_mesh(paths[rank], DirectoryStore(folder), rank, size, deadline=PATIENCE)
    results = [session.run(x + turn)[0] for turn in range(3)]
    return session.threads, results, [path.name for path in Path(folder).iterdir()]


def refused(rank: int, size: int, paths: list[str], folder: str, deadline: float = PATIENCE, told: int = 0) -> str:
    with pytest.raises(LowerkitError) as caught:
        join_mesh(paths[rank], DirectoryStore(folder), rank, told or size, deadline=deadline)
    return caught.value.render()


def test_ranks_serve(tmp_path: Path) -> None:
    paths = [str(write_mesh(tmp_path / "two.lk"))] * 2
    x = RANDOM.standard_normal(COLUMNS).astype(np.float32)
    for threads, results, left in run_processes(serve, 2, paths, str(tmp_path / "store"), x):
        assert threads == max(1, default_threads() // 2) and left == []
        for turn, result in enumerate(results):
            np.testing.assert_allclose(result, expected(x + turn), rtol=1e-6)


def test_a_rank_with_another_artifact_is_refused_by_all(tmp_path: Path) -> None:
    paths = [write_mesh(tmp_path / "a.lk"), write_mesh(tmp_path / "b.lk", producer={"lowerkit": "other"})]
    texts = run_processes(refused, 2, list(map(str, paths)), str(tmp_path / "store"))
    for rank, text in enumerate(texts):
        assert text.startswith(
            f"error[LK8022]: group 'mesh', rank {rank}: rank {1 - rank} has model {paths[1 - rank]} ("
        )
        assert f"this rank has {paths[rank]} (content id " in text


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    paths = [str(write_mesh(tmp_path / "two.lk"))]
    (text,) = run_processes(refused, 1, paths, str(tmp_path / "store"), 0.5, 2)
    assert "LK8007" in text and "rank 1 of 2 did not come within 0.5 s" in text


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    paths = [str(write_mesh(tmp_path / "three.lk", 3))] * 2
    for text in run_processes(refused, 2, paths, str(tmp_path / "store")):
        assert "tp=3" in text and "2" in text and "hint" in text


def test_an_artifact_for_one_rank_is_refused(tmp_path: Path) -> None:
    paths = [str(write_one_rank(tmp_path / "one.lk"))] * 2
    for text in run_processes(refused, 2, paths, str(tmp_path / "store")):
        assert "mesh" in text and "hint" in text


def test_a_group_ends_with_its_session(tmp_path: Path) -> None:
    session = join_mesh(write_mesh(tmp_path / "one.lk", 1), DirectoryStore(tmp_path / "store"), 0, 1)
    group = session.group
    assert group is not None
    x = RANDOM.standard_normal(COLUMNS).astype(np.float32)
    np.testing.assert_allclose(session.run(x)[0], expected(x, 1), rtol=1e-6)
    del session
    gc.collect()
    with pytest.raises(LowerkitError, match="closed"):
        group.run(group.calls.barrier())
