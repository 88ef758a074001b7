"""Random graphs of tools/fuzz/graphs.py, ONNX nodes of tools/fuzz/onnx_ops.py: the seeds below must go on to pass.

Fresh seeds still find failures: they are for the tool itself, until long runs of it pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_tool(name: str, *arguments: str, folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(ROOT / "tools" / "fuzz" / name), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, timeout=400, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (12, 14, 15))])
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    run_tool("graphs.py", "--count", "1", "--seed", str(seed), "--together", "5", "--tries", "0", folder=tmp_path)


@pytest.mark.slow
def test_random_onnx_nodes(tmp_path: Path) -> None:
    run_tool("onnx_ops.py", "--count", "40", "--seed", "9", folder=tmp_path)
