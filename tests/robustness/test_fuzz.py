"""A short run of tools/fuzz/files.py over each target: a mutated file is refused, or means what the sound one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {
    "artifact": 1000, "manifest": 1000, "zip": 1000, "archive": 40, "model-text": 60, "onnx": 150, "handshake": 3000,
    "flight-record": 300, "tuning-table": 1000,
}  # fmt: skip


def fuzz(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(ROOT / "tools/fuzz/files.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.mark.parametrize("target", COUNTS)
def test_mutated_files(target: str, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    done = fuzz(target, "--count", COUNTS[target], "--workers", 1, "--seed", 1, "--state", state)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(state.read_text())
    assert found["done"] == COUNTS[target] == sum(found["outcomes"].values())
    assert found["failures"] == []
    assert len(found["outcomes"]) >= 3, "the mutations reach one check only"


def test_strangers_at_the_sockets_of_ranks() -> None:
    command = [sys.executable, str(ROOT / "tools/fuzz/strangers.py"), "--count", "350", "--seed", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0 and "0 failures" in done.stdout, done.stdout + done.stderr


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for done in (40, 80):
        assert fuzz("zip", "--count", 40, "--workers", 2, "--state", state).returncode == 0
        found = json.loads(state.read_text())
        assert found["done"] == done == sum(found["outcomes"].values())
