"""Native test programs under a deadline, built and run beside the tests; of one that hangs, where its threads stand.

To build the programs under a sanitizer takes a minute, and most of them wait rather than compute. So the first worker
of a session starts ``python -m tests.support.native_programs`` once it knows which programs its tests want. That builds
and runs them, and a test takes the outcome of its program from a file.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLLECTIVE = ROOT / "tests/native/collective"
EXECUTOR = ROOT / "tests/native/executor"
# The compiler is what takes the time, and most of it for optimizing the sanitizers' checks.
SANITIZERS = {
    "address": ["-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O0", "-g1", "-fsanitize=thread"],
}
SECONDS = 300.0  # of a program: a hang is a failure, and ends here
_GDB_SECONDS = 60.0
_RUNNING = 4  # programs at a time: they wait more than they compute


@dataclass(frozen=True)
class NativeRun:
    """A native test program under a sanitizer."""

    sanitizer: str
    program: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join((self.sanitizer, self.program, *filter(None, self.arguments)))


def start_runs(folder: Path, runs: Sequence[NativeRun], watched: int) -> None:
    """Builds and runs programs in a process of its own, which removes ``folder`` when the process ``watched`` ends."""
    with (folder / "lock").open("w") as lock, (folder / "log").open("w") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)  # by the started process, until it has run them all
        command = [sys.executable, "-m", "tests.support.native_programs", str(folder), str(watched), str(lock.fileno())]
        subprocess.Popen(
            [*command, json.dumps([asdict(run) for run in runs])],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, pass_fds=[lock.fileno()],
            start_new_session=True,
        )  # fmt: skip


def require_success(folder: Path, run: NativeRun) -> None:
    """Waits for the outcome of a program that :func:`start_runs` was given.

    Raises:
        AssertionError: it was not built, failed or hung.
    """
    # A build takes as long as the machine lets it, and each program has a deadline: pytest's is for neither.
    faulthandler.cancel_dump_traceback_later()
    outcome = folder / f"{run}.outcome"
    with (folder / "lock").open() as lock:
        while not outcome.exists():
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break  # nobody works at it any more
            time.sleep(0.05)
    assert outcome.exists(), f"{run} was never run:\n{(folder / 'log').read_text()[-8000:]}"
    problem = outcome.read_text()
    assert not problem, problem


def run_program(command: list[str], environment: dict[str, str], seconds: float) -> None:
    """Runs a program that must end with 0 within ``seconds``.

    Raises:
        AssertionError: it failed, with the end of what it said; or it hung, with the stacks of all its threads and of
            the processes that it started, which are killed.
    """
    with tempfile.TemporaryFile() as output:  # no pipe: a process that it left behind would hold that open
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code = process.wait(seconds)
            problem = f"it ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"it hangs: not done within {seconds:g} s\n" + "\n".join(map(stacks, _members(process.pid)))
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        said = output.read().decode(errors="replace")
    assert not problem, f"{' '.join(command)}: {problem}\n{said[-8000:]}"


def stacks(process: int) -> str:
    """Returns where each thread of a process stands, as gdb says it."""
    debugger = shutil.which("gdb")
    if debugger is None:
        return f"process {process}: there is no gdb to show its stacks"
    command = [debugger, "-p", str(process), "-batch", "-ex", "thread apply all backtrace"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_GDB_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"process {process}: gdb showed no stacks within {_GDB_SECONDS:g} s"
    return f"process {process}:\n{(done.stdout or done.stderr)[-20_000:]}"


def _members(group: int) -> list[int]:
    """Returns the processes of a process group."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has just ended
                if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                    found.append(int(entry.name))
    return found


def _build(folder: Path, sanitizer: str, programs: set[str]) -> None:
    """Builds programs, each into ``folder`` under its name."""
    options = SANITIZERS[sanitizer]
    if "thread_pool_test" in programs:
        folder.mkdir()
        target = str(folder / "thread_pool_test")
        subprocess.run(["bash", str(EXECUTOR / "build.sh"), target, *options], check=True)
    sources = [str(COLLECTIVE / f"{name}.cpp") for name in sorted(programs - {"thread_pool_test"})]
    if sources:
        subprocess.run(["bash", str(COLLECTIVE / "build.sh"), str(folder), *sources, *options], check=True)


def _run(folder: Path, run: NativeRun) -> None:
    problem = ""
    try:
        command = [str(folder / run.sanitizer / run.program), *run.arguments]
        run_program(command, {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}, SECONDS)
    except AssertionError as error:
        problem = str(error)
    unfinished = folder / f"{run}.unfinished"
    unfinished.write_text(problem)
    unfinished.rename(folder / f"{run}.outcome")


def _work(folder: Path, runs: Sequence[NativeRun], lock: int) -> None:
    """Builds and runs programs: those of one sanitizer run while those of the next are built."""
    wanted: defaultdict[str, list[NativeRun]] = defaultdict(list)
    for run in runs:
        wanted[run.sanitizer].append(run)
    try:
        with ThreadPoolExecutor(_RUNNING) as pool:
            for sanitizer, its_runs in wanted.items():
                _build(folder / sanitizer, sanitizer, {run.program for run in its_runs})
                for run in its_runs:
                    pool.submit(_run, folder, run)
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _end_children() -> None:
    lists = Path("/proc/self/task").glob("*/children")
    children = [int(child) for names in lists for child in names.read_text().split()]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # compilers are in the group of this process
    for child in children:
        with suppress(ProcessLookupError):
            group = os.getpgid(child)
            os.killpg(group, signal.SIGTERM if group == os.getpgrp() else signal.SIGKILL)


def main() -> None:
    """Does what the command line says, and waits for the end of the session."""
    folder, watched, lock = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    runs = [NativeRun(each["sanitizer"], each["program"], tuple(each["arguments"])) for each in json.loads(sys.argv[4])]
    threading.Thread(target=_work, args=(folder, runs, lock), daemon=True).start()
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(watched)], [], [])
    _end_children()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # the thread may be at work


if __name__ == "__main__":
    main()
