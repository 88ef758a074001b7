"""A short run of tools/fuzz/files.py over each target: a mutated file is refused, or means what the sound one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {
    "artifact": 1000, "manifest": 1000, "zip": 1000, "archive": 40, "model-text": 60, "onnx": 150, "handshake": 3000,
    "flight-record": 300, "tuning-table": 1000,
}  # fmt: skip


# Runs command lines one after the other: what they import is most of the time that a short run takes.
RUN = """
import contextlib, json, sys
import files
for line in sys.stdin:
    code = 0
    with contextlib.redirect_stdout(sys.stderr):
        try:
            files.main(json.loads(line))
        except SystemExit as end:
            code = end.code
    print(int(code or 0), flush=True)
"""
Fuzz = Callable[..., None]


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzz]:
    """Returns a function that runs tools/fuzz/files.py, in a process that all tests share."""
    path = os.pathsep.join([str(ROOT / "tools/fuzz"), *sys.path])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    log = tmp_path_factory.mktemp("fuzz") / "log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
            env=environment,
        )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    commands, codes = process.stdin, process.stdout

    def run(*arguments: object) -> None:
        commands.write(json.dumps(list(map(str, arguments))) + "\n")
        commands.flush()
        code = codes.readline()
        assert code == "0\n", f"{code}\n{log.read_text()[-8000:]}"

    yield run
    commands.close()
    process.wait()


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("target", COUNTS)
def test_mutated_files(target: str, share: int, fuzz: Fuzz, tmp_path: Path) -> None:
    state, count = tmp_path / "state.json", COUNTS[target] // share
    fuzz(target, "--count", count, "--workers", 1, "--seed", 1, "--state", state)
    found = json.loads(state.read_text())
    assert found["done"] == count == sum(found["outcomes"].values())
    assert found["failures"] == []
    assert len(found["outcomes"]) >= 3, "the mutations reach one check only"


def test_strangers_at_the_sockets_of_ranks() -> None:
    command = [sys.executable, str(ROOT / "tools/fuzz/strangers.py"), "--count", "350", "--seed", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0 and "0 failures" in done.stdout, done.stdout + done.stderr


def test_a_run_goes_on_where_it_stopped(fuzz: Fuzz, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for done in (40, 80):
        fuzz("zip", "--count", 40, "--workers", 2, "--state", state)
        found = json.loads(state.read_text())
        assert found["done"] == done == sum(found["outcomes"].values())
