"""The native tests of the collectives (ranks as threads) under the sanitizers; Python's tests run them without."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native_programs import run_program

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = {
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
# A race is in a path of the code and not in an element type or a size: some cases show it. Seven is prime to all lists.
THINNED = {("thread", "operations_test"): ["", "7"]}
# Their ranks are processes, or they have one thread: nothing there could race.
WITHOUT_THREADS = {"processes_test", "fuzz_frames", "damage_test"}
# The longest takes a minute where three others share two processors with it. A hang is a failure, and ends here.
SECONDS = 180.0

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture(scope="module", params=list(SANITIZERS))
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a sanitizer's name with the programs that it watches."""
    folder = tmp_path_factory.mktemp("collective") / request.param
    command = ["bash", str(ROOT / "tests/native/collective/build.sh"), str(folder), *SANITIZERS[request.param]]
    subprocess.run(command, check=True)
    return folder


def test_every_program_is_run() -> None:
    sources = (ROOT / "tests/native/collective").glob("*.cpp")
    assert {source.stem for source in sources} == set(TESTS)


@pytest.mark.parametrize("name", TESTS)
def test_native(programs: Path, name: str) -> None:
    if programs.name == "thread" and name in WITHOUT_THREADS:
        pytest.skip("no threads that could race")
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    arguments = THINNED.get((programs.name, name), TESTS[name])
    run_program([str(programs / name), *arguments], environment, SECONDS)


def test_a_program_that_hangs_is_ended_and_shown() -> None:
    with pytest.raises(AssertionError, match=r"(?s)not done within 3 s.*process \d+:.*process \d+:.*said"):
        run_program(["sh", "-c", "sleep 1000 & echo said; wait"], dict(os.environ), 3.0)
    with pytest.raises(AssertionError, match="ended with 3"):
        run_program(["sh", "-c", "exit 3"], dict(os.environ), 60.0)
