"""A compiled model on ranks that are processes: eager's values, the same bits on all ranks and in simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lowerkit
from lowerkit.cli.supervise import read_manifest
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.mesh.ranks import join_mesh
from lowerkit.runtimes.mesh.simulated import run_simulated
from tests.support.mesh.processes import finished
from tests.support.models import benchmark_models
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE
from tests.support.suite.randomness import RANDOM

PLAN = {
    "*.[qkv]_proj": "column",
    "*.o_proj": "row",
    "*.gate_proj": "column",
    "*.up_proj": "column",
    "*.down_proj": "row",
    "*.embed_tokens": "vocabulary",
    "*.lm_head": "vocabulary",
}
LENGTHS = (3, 20, 7, 32, 2)
"""Some need a larger arena than all before them."""


def serve(rank: int, size: int, path: str, folder: str, shared: bool, rows: list[np.ndarray[Any, Any]]) -> Any:
    reach = RendezvousOptions(shared_memory=shared)
    session = join_mesh(path, DirectoryStore(folder), rank, size, deadline=PATIENCE, reach=reach, threads=1)
    return [session.run(row)[0] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_llama(ranks: int, tmp_path: Path) -> None:
    module, (ids,) = benchmark_models().tiny("llama")
    sizes = ({1: torch.export.Dim("length", min=2, max=32)},)
    compiled = lowerkit.compile(module, (ids,), dynamic_shapes=sizes, mesh=f"tp={ranks}", shard=PLAN)
    path = tmp_path / "m.lk"
    compiled.save(path)
    rows = [RANDOM.integers(0, int(ids.max()) + 1, (ids.shape[0], length)) for length in LENGTHS]
    simulated = [run_simulated(path, [row]) for row in rows]
    with torch.no_grad():
        expected = [module(torch.from_numpy(row)) for row in rows]
    for shared in (True, False):
        results = run_processes(serve, ranks, str(path), str(tmp_path / f"store{shared}"), shared, rows)
        for number, row in enumerate(simulated):
            np.testing.assert_allclose(results[0][number], expected[number].numpy(), rtol=1e-4, atol=1e-5)
            for rank in range(ranks):
                assert row[rank][0].tobytes() == row[0][0].tobytes()
                assert results[rank][number].tobytes() == results[0][number].tobytes()
                if ranks == 2:  # one order of two terms; of four it is the algorithm's
                    assert results[rank][number].tobytes() == row[rank][0].tobytes()

    np.save(tmp_path / "ids.npy", rows[1])
    name = read_manifest(path).programs[0].signature.inputs[0].name
    given = ["--input", f"{name}=@{tmp_path}/ids.npy", "-o", tmp_path / "out"]
    code, _, err = finished(tmp_path, "run", path, "--nproc", ranks, *given)
    assert code == 0, err
    (written,) = (tmp_path / "out").iterdir()
    np.testing.assert_allclose(np.load(written), expected[1].numpy(), rtol=1e-4, atol=1e-5)
    code, _, err = finished(tmp_path, "verify", path)
    assert code == 0, err
