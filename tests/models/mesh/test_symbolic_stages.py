"""Stages of a pipeline whose values have symbolic extents: products of extents, joined ones, the ends of ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.errors import LowerkitError
from lowerkit.parity.check import check_program
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.mesh.ranks import join_mesh
from lowerkit.runtimes.mesh.simulated import run_simulated
from lowerkit.runtimes.verify import verify_artifact
from lowerkit.spmd.sharding import sharding_of
from tests.support.models import symbolic_program
from tests.support.processes import run_processes
from tests.support.suite.randomness import RANDOM


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.exhaustive), "vit_b16"])
def test_extents_that_are_products_and_those_that_are_joined(name: str) -> None:
    """GPT-2 joins batch and length to one dimension; ViT cuts a position out of a joined tensor."""
    program = symbolic_program(name)
    report = check_program(program, sharding=sharding_of("pp=2", "auto", program))
    assert report.passed, report.first_failure
    assert len(report.sizes) > 2


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    """GPT-2 in two stages."""
    program = symbolic_program("gpt2")
    path = tmp_path_factory.mktemp("stages") / "two.lk"
    compile_program(program, CompileOptions(sharding=sharding_of("pp=2", "auto", program))).save(path)
    return program.eager_module, path


def serve(rank: int, size: int, path: str, folder: str, rows: list[np.ndarray[Any, Any]]) -> Any:
    session = join_mesh(path, DirectoryStore(folder), rank, size, deadline=300.0, threads=1)
    return [session.run(row)[0] for row in rows]


def test_ends_of_the_range_one_after_the_other(compiled: tuple[torch.nn.Module, Path], tmp_path: Path) -> None:
    """In sessions of two processes, which grow their memory as sizes do, and in simulation: eager's values."""
    module, path = compiled
    assert verify_artifact(path).passed
    rows = [RANDOM.integers(0, 100, size) for size in ((1, 2), (8, 32), (3, 5), (1, 2))]
    first, second = run_processes(serve, 2, str(path), str(tmp_path / "store"), rows, timeout=400.0)
    for row, one, other in zip(rows, first, second, strict=True):
        with torch.no_grad():
            np.testing.assert_allclose(one, module(torch.from_numpy(row)).numpy(), rtol=1e-4, atol=1e-5)
        for (found,) in run_simulated(path, [row]):
            assert one.tobytes() == other.tobytes() == found.tobytes()


def test_a_size_out_of_range_is_refused_by_all(compiled: tuple[torch.nn.Module, Path]) -> None:
    with pytest.raises(LowerkitError, match=r"batch.*9|9.*batch"):
        run_simulated(compiled[1], [np.zeros((9, 4), np.int64)])
