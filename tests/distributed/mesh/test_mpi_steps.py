"""Programs for a mesh in a communicator of mpi4py, and on the command line with MPI as the engine."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.scale_out.test_mpirun import RANK, mpirun
from tests.support.mesh.artifacts import expected, write_mesh
from tests.support.mesh.engine_artifacts import write_all, write_model
from tests.support.mesh.engine_ranks import FUNCTIONS, TOGETHER, X
from tests.support.mesh.processes import finished, left_behind
from tests.support.mpi_rank import MISSING, MPIRUN, run_with_mpi

pytestmark = pytest.mark.skipif(MPIRUN is None, reason=MISSING)
RANKS = "tests.support.mesh.mpi_programs"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[str]]:
    """Returns for each function what it raised on each rank. The jobs run side by side: some wait for deadlines."""
    found: dict[tuple[int, str], list[str]] = {}
    with ThreadPoolExecutor() as pool:
        jobs: list[tuple[int, int, Path, Future[dict[str, list[str]]]]] = []
        for size, lists in TOGETHER.items():
            folder = tmp_path_factory.mktemp(f"mpi{size}ranks")
            (folder / "programs").mkdir(mode=0o700)
            (folder / "programs" / "native").mkdir(mode=0o700)
            write_all(folder / "programs", size)
            write_model(folder / "programs", size)
            if size == 4:
                (folder / "parts").mkdir(mode=0o700)
                write_mesh(folder / "parts" / "sum.lk", 2)
            for number in range(len(lists)):
                names = [f"{RANKS}:programs{number}", *([f"{RANKS}:parts"] if size == 4 else [])]
                jobs.append((size, number, folder, pool.submit(run_with_mpi, size, folder, names)))
    for size, number, folder, job in jobs:
        raised = job.result()
        for function in TOGETHER[size][number]:
            files = [folder / "programs" / f"verdict.{function.__name__}.{rank}" for rank in range(size)]
            found[size, function.__name__] = [
                file.read_text() if file.exists() else f"was not reached: {raised}" for file in files
            ]
        found[size, "parts"] = raised.get(f"{RANKS}:parts", [])
    return found


@pytest.mark.parametrize(
    ("size", "name"), [*((size, each.__name__) for size in FUNCTIONS for each in FUNCTIONS[size]), (4, "parts")]
)
def test_ranks(size: int, name: str, results: dict[tuple[int, str], list[str]]) -> None:
    assert results[size, name] == [""] * size, "\n".join(results[size, name])


@pytest.mark.parametrize("engine", ["mpi", "gloo"])
def test_the_command_line(engine: str, tmp_path: Path) -> None:
    """Under mpirun, and with gloo in processes of ``--nproc``; what cannot be is refused before anything starts."""
    path, out = write_mesh(tmp_path / "two.lk"), tmp_path / "out"
    np.save(tmp_path / "x.npy", X)
    command = mpirun(2, *RANK) if engine == "mpi" else ()
    given = ["run", path, "--engine", engine, "--input", f"x=@{tmp_path}/x.npy"]
    ranks = [] if engine == "mpi" else ["--nproc", 2]
    code, _, err = finished(tmp_path, *given, "-o", out, *ranks, command=command)
    assert code == 0 and err == "" and left_behind(tmp_path) == [], err
    np.testing.assert_allclose(np.load(out / "y.npy"), expected(X), rtol=1e-6)
    code, _, err = finished(tmp_path, *given, "--sim", 2)
    starter = "mpirun" if engine == "mpi" else "--nproc or torchrun"
    assert code == 2 and f"LK1009]: --engine {engine} is for ranks that are started by {starter}" in err, err
