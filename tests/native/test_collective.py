"""The native tests of the collectives (ranks as threads): as they are, and under the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native_programs import run_program

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = {
    "plain": [],
    "address": ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-g1", "-fsanitize=thread"],
}
# The last argument of a program, where it takes one, keeps the run short; tools/sanitize.sh runs them whole.
TESTS = {
    "messages_test": [],
    "operations_test": [],
    "processes_test": [],
    "group_messages_test": [],
    "failures_test": [],
    "hosts_test": [],
    "collectives_test": ["1", "3", "100000"],
    "simulation_test": [],
    "steps_test": [],
    "fuzz_frames": ["20000"],
    "damage_test": ["20"],
}
# The longest takes a minute where three others share two processors with it. A hang is a failure, and ends here.
SECONDS = 180.0

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(scope="module", params=list(SANITIZERS))
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collective")
    command = ["bash", str(ROOT / "tests/native/collective/build.sh"), str(folder), *SANITIZERS[request.param]]
    subprocess.run(command, check=True)
    return folder


def test_every_program_is_run() -> None:
    sources = (ROOT / "tests/native/collective").glob("*.cpp")
    assert {source.stem for source in sources} == set(TESTS)


@pytest.mark.parametrize("name", TESTS)
def test_native(programs: Path, name: str) -> None:
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    run_program([str(programs / name), *TESTS[name]], environment, SECONDS)


def test_a_program_that_hangs_is_ended_and_shown() -> None:
    with pytest.raises(AssertionError, match=r"(?s)not done within 3 s.*process \d+:.*process \d+:.*said"):
        run_program(["sh", "-c", "sleep 1000 & echo said; wait"], dict(os.environ), 3.0)
    with pytest.raises(AssertionError, match="ended with 3"):
        run_program(["sh", "-c", "exit 3"], dict(os.environ), 60.0)
