"""Native test programs under a deadline: of one that hangs, where its threads stand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

_GDB_SECONDS = 60.0


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
