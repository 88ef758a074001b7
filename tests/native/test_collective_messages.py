"""Messages between ranks and the collectives over them, in C++: as they are, and under the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = {
    "plain": [],
    "address": ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-g1", "-fsanitize=thread"],
}

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(scope="module", params=list(SANITIZERS))
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messages")
    command = ["bash", str(ROOT / "tests/native/collective/build.sh"), str(folder), *SANITIZERS[request.param]]
    subprocess.run(command, check=True)
    return folder


def run(program: Path, *arguments: str) -> str:
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    command = [str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    return done.stdout


def test_messages(programs: Path) -> None:
    assert " 0 failed checks" in run(programs / "messages_test")


def test_operations(programs: Path) -> None:
    assert " 0 failed checks" in run(programs / "operations_test")


def test_processes(programs: Path) -> None:
    assert " 0 failed checks" in run(programs / "processes_test")


def test_damaged_frames(programs: Path) -> None:
    """20,000 frames, with a seed that the output names; tools/sanitize.sh takes any number."""
    assert " 0 failed checks" in run(programs / "fuzz_frames", "20000")
