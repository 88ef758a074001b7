"""The native tests of the collectives (ranks as threads) under the sanitizers; Python's tests run them without."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest

from tests.support.native_programs import COLLECTIVE, NativeRun, run_program

# The last argument of a program, where it takes one, keeps the run short; tools/sanitize.sh runs them whole. Where that
# of operations_test thins lists of cases, it is prime to all of them.
ADDRESS = [
    NativeRun("address", "operations_test", ("", "7")),
    NativeRun("address", "processes_test"),
    NativeRun("address", "hosts_test"),
    NativeRun("address", "messages_test"),
    NativeRun("address", "group_messages_test"),
    NativeRun("address", "failures_test"),
    NativeRun("address", "collectives_test", ("1", "3", "20003")),
    NativeRun("address", "simulation_test"),
    NativeRun("address", "steps_test"),
    NativeRun("address", "fuzz_frames", ("20000",)),
    NativeRun("address", "damage_test", ("20",)),
]
# Not those whose ranks are processes, and those that have one thread: nothing there could race. A race is in a path of
# the code and not in an element type or a size: some cases show it.
THREAD = [
    NativeRun("thread", "operations_test", ("", "7")),
    NativeRun("thread", "hosts_test"),
    NativeRun("thread", "messages_test"),
    NativeRun("thread", "group_messages_test"),
    NativeRun("thread", "failures_test"),
    NativeRun("thread", "collectives_test", ("1", "2", "20003")),
    NativeRun("thread", "simulation_test"),
    NativeRun("thread", "steps_test"),
]
# More element types, sizes and ranks of the same.
LONGER = [
    NativeRun("address", "operations_test"),
    NativeRun("address", "collectives_test", ("1", "3", "1000000")),
    NativeRun("thread", "collectives_test", ("1", "3", "1000000")),
]


def test_every_program_is_run() -> None:
    assert {source.stem for source in COLLECTIVE.glob("*.cpp")} == {run.program for run in ADDRESS}


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    "run", [*ADDRESS, *THREAD, *(pytest.param(run, marks=pytest.mark.exhaustive) for run in LONGER)], ids=str
)
def test_native(run: NativeRun, require_native: Callable[[NativeRun], None]) -> None:
    require_native(run)


def test_a_program_that_hangs_is_ended_and_shown() -> None:
    with pytest.raises(AssertionError, match=r"(?s)not done within 2 s.*process \d+:.*process \d+:.*said"):
        run_program(["sh", "-c", "echo said; sleep 1000 & wait"], dict(os.environ), 2.0)
    with pytest.raises(AssertionError, match="ended with 3"):
        run_program(["sh", "-c", "exit 3"], dict(os.environ), 60.0)
