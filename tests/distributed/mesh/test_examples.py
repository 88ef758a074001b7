"""The examples of meshes in docs/distributed do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "docs/distributed"
_DEADLINE = 180.0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["pipeline.py"], "4 stages, 4 micro-batches: largest error"),
        (["experts.py"], "1 all_to_all"),
        (["beyond_memory.py"], "tp=2,pp=2: largest error"),
    ],
    ids=["pipeline", "experts", "beyond-memory"],
)
def test_an_example(command: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert "largest error" in done.stdout
