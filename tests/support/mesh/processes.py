"""Command lines whose ranks are processes: started with a mark, found again by it, and ended with the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tests.support.ranks import PATIENCE

Value = TypeVar("Value")
ROOT = Path(__file__).resolve().parents[3]
SECONDS = PATIENCE
"""Until what a test waits for must have happened, on whatever machine."""

_MARK = "PROCESS_OF_THE_TEST"


@contextmanager
def started(mark: Path, *arguments: object, command: tuple[str, ...] = ()) -> Generator[subprocess.Popen[str]]:
    """Starts ``lowerkit ARGUMENTS``; ends what is left of it and its ranks after the block.

    Args:
        mark: told to all processes; a folder of the test.
        arguments: of the command line.
        command: stands in the place of this interpreter's ``-m lowerkit``.
    """
    words = [*(command or (sys.executable, "-m", "lowerkit")), *map(str, arguments)]
    (temporary := mark / "temporary").mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary), _MARK: str(mark)}
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    try:
        yield process
    finally:
        for one in running(mark):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.kill()
        process.communicate()


def finished(mark: Path, *arguments: object, command: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Runs a command line to its end; returns exit code, stdout and stderr. No process of it may be left."""
    with started(mark, *arguments, command=command) as process:
        out, err = process.communicate(timeout=SECONDS)
        await_end(mark)
    return process.returncode, out, err


def running(mark: Path) -> list[int]:
    """Returns the processes that live of those that were started with a mark."""
    return [process for process in _processes() if _is_marked(process, mark)]


def rank_process(mark: Path, rank: int) -> int:
    """Waits for the process of a rank that ``--nproc`` started, and returns it."""
    return await_value(lambda: _find_rank(mark, rank), f"no process of rank {rank}")


def await_steps(mark: Path, ranks: int) -> None:
    """Waits until the ranks have met and have computed since: they are within their steps."""
    processes = [rank_process(mark, rank) for rank in range(ranks)]
    store = _folder(processes[0]) / "store"
    await_value(lambda: store.is_dir() and not list(store.iterdir()), "ranks have not met")
    before = [_processor_time(process) for process in processes]
    await_value(
        lambda: all(_processor_time(one) > was + 25 for one, was in zip(processes, before, strict=True)),
        "ranks do not compute",
    )


def await_end(mark: Path) -> None:
    """Waits until no process of the mark is left: the kernel may still be at their ends."""
    await_value(lambda: not running(mark), f"processes {running(mark)} are left")


def left_behind(mark: Path) -> list[str]:
    """Returns what lies in the folder for temporary files."""
    return [path.name for path in (mark / "temporary").iterdir()]


def await_value(look: Callable[[], Value | None], otherwise: str) -> Value:
    """Returns what ``look`` returns as soon as that is true; fails with ``otherwise`` after a long time."""
    end = time.monotonic() + SECONDS
    while not (value := look()):
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)
    return value


def _find_rank(mark: Path, rank: int) -> int | None:
    return next((one for one in running(mark) if _place(one).startswith(f"{rank}:")), None)


def _folder(process: int) -> Path:
    """Returns the folder in which a rank meets the others."""
    return Path(_place(process).split(":", 3)[3])


def _place(process: int) -> str:
    """Returns the place of a rank, as its command line says it; empty for other processes."""
    words = _command(process)
    return words[words.index("--rank-place") + 1] if "--rank-place" in words else ""


def _command(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def _processor_time(process: int) -> int:
    """Returns the hundredths of a second that a process has computed; a dead one's is that of the end of time."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 1 << 62
    return int(fields[11]) + int(fields[12])


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _is_marked(process: int, mark: Path) -> bool:
    try:
        return f"{_MARK}={mark}".encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
