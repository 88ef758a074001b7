"""What the ranks of mpirun run for tests/distributed/mesh/test_mpi_steps.py. Nothing here loads torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lowerkit
from lowerkit.errors import LowerkitError
from tests.support.mesh.artifacts import expected
from tests.support.mesh.engine_ranks import TOGETHER, Ranks, X, verdicts
from tests.support.ranks import PATIENCE


def programs0(rank: int, size: int, folder: str, seed: int) -> None:
    _programs(0, rank, size, Path(folder))


def programs1(rank: int, size: int, folder: str, seed: int) -> None:
    _programs(1, rank, size, Path(folder))


def programs2(rank: int, size: int, folder: str, seed: int) -> None:
    _programs(2, rank, size, Path(folder))


def _programs(number: int, rank: int, size: int, folder: Path) -> None:
    """Writes what each function raised: the ranks of one mpirun run all that are together."""
    from mpi4py import MPI

    shared = folder.with_name("programs")
    found = verdicts(Ranks(rank, size, shared, MPI.COMM_WORLD, tells_sizes=False), TOGETHER[size][number])
    for name, text in found.items():
        (shared / f"verdict.{name}.{rank}").write_text(text)


def parts(rank: int, size: int, folder: str, seed: int) -> None:
    """A communicator of some ranks in another order, and one that goes beyond the job."""
    from mpi4py import MPI

    pair = MPI.COMM_WORLD.Split(rank % 2, key=-rank)
    session = lowerkit.load(Path(folder) / "sum.lk", group=pair, threads=1, deadline=PATIENCE)
    assert session.group is not None and session.group.rank == 1 - rank // 2
    np.testing.assert_allclose(session.run(X)[0], expected(X), rtol=1e-6)
    with pytest.raises(LowerkitError, match="LK8021.*for a mesh tp=2, and the group 'mesh' has 4 ranks"):
        lowerkit.load(Path(folder) / "sum.lk", group=MPI.COMM_WORLD, deadline=PATIENCE)
