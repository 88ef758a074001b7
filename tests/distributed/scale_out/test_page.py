"""The commands of docs/scale-out.md, in the order of the page; those that need Ray run in test_ray_cluster.py."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lowerkit.cli.main import cli
from tests.support.mesh.processes import await_end, running
from tests.support.mpi_rank import MISSING, MPIRUN
from tests.support.scale_out.page import COMMANDS, FILES, ON_RAY, block, blocks, write_files

MARK = "PROCESS_OF_THE_TEST"
# mpirun: as root, and more ranks than cores, where the machine is such.
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def test_every_block_of_the_page_has_a_test() -> None:
    assert [name for name, _ in blocks()] == [*FILES, *COMMANDS, *ON_RAY]


@pytest.mark.slow
@pytest.mark.skipif(MPIRUN is None, reason=MISSING)
def test_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is about one process runs in this one, which has loaded torch; the ranks run in a shell."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in block("compile").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "lowerkit"
        assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0
    exec(compile(block("replicas"), "replicas", "exec"), {})
    programs = str(Path(sys.executable).parent)
    environment = {**os.environ, **MPI, "OMP_NUM_THREADS": "1", MARK: str(tmp_path)}
    environment["PATH"] = os.pathsep.join([programs, os.environ["PATH"]])
    outputs: dict[str, str] = {}
    assert COMMANDS[:2] == ("compile", "replicas")
    for name in COMMANDS[2:]:
        done = subprocess.run(
            ["bash", "-euc", block(name)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
        outputs[name] = done.stdout
    assert outputs["ranks"].count("f32    [4, 64]") == 3
    sums = [line for line in outputs["ranks"].splitlines() if line.startswith("request ")]
    assert len(sums) == 6 and sums[:3] == sums[3:]
    assert "rank 0 of 2: 3 requests" in outputs["elastic"]
    await_end(tmp_path)
    assert not running(tmp_path)
