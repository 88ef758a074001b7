"""Starts the ranks of a mesh as processes of this machine, and ends with one diagnostic for all of them.

The parent makes a private folder where the ranks meet, starts the command line again for each rank, and waits. When a
rank ends badly the others have a few seconds to notice it, since what they say of it is shown; those that are left then
are killed. No rank outlives the parent: at a signal it kills them, and the kernel does if the parent itself is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lowerkit.cli.running.place import LocalPlace
from lowerkit.cli.running.report import read_report
from lowerkit.cli.running.verdict import RankEnd, verdict
from lowerkit.errors import ResourceError

NOTICE_SECONDS = 5.0
"""How long ranks go on when one has ended badly: to notice it, and to say so."""

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.2
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass
class _Rank:
    """A process that was started.

    Attributes:
        process: of the rank.
        report: descriptor of the file that it writes its diagnostic to.
        end: how it ended, None while it runs.
    """

    process: subprocess.Popen[bytes]
    report: int
    end: RankEnd | None = field(default=None)


def launch(names: Sequence[str], arguments: Sequence[str]) -> None:
    """Runs ``lowerkit run`` on a rank for each name; returns when all of them ended well.

    Args:
        names: by rank how messages call it.
        arguments: of ``lowerkit``, from its name on, as this process got them.

    Raises:
        LowerkitError, DiagnosedError: a rank ended badly; the first one is named.
        ResourceError: LK7003, a rank could not be started.
        KeyboardInterrupt: somebody pressed Ctrl-C, and all ranks ended.
    """
    stopping = {number for number in _STOPPING if signal.getsignal(number) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*stopping, signal.SIGCHLD})
    stopped_by: int | None = None
    try:
        with tempfile.TemporaryDirectory(prefix="lowerkit-mesh-") as folder:
            ranks: list[_Rank] = []
            try:
                for rank in range(len(names)):
                    ranks.append(_start(Path(folder), rank, len(names), arguments, before))
                stopped_by = _wait(ranks, stopping)
            finally:
                _kill(ranks)
    finally:
        if stopped_by not in (None, signal.SIGINT):
            signal.signal(stopped_by, signal.SIG_DFL)
            os.kill(os.getpid(), stopped_by)  # waits for the next line
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if stopped_by is not None:
        raise KeyboardInterrupt
    failure = verdict([rank.end for rank in ranks if rank.end is not None], names)
    if failure is not None:
        raise failure


def _start(folder: Path, rank: int, size: int, arguments: Sequence[str], mask: set[int]) -> _Rank:
    report = os.memfd_create(f"lowerkit rank {rank}")
    place = LocalPlace(folder, rank, size, report)
    # Only options of `lowerkit` itself stand before the command, and none of them takes a word.
    behind = list(arguments).index("run") + 1
    command = [sys.executable, "-P", "-m", "lowerkit", *arguments[1:behind], *place.options(), *arguments[behind:]]
    parent, library = os.getpid(), ctypes.CDLL(None)

    def prepare() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the ranks, too: the parent ends them
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    try:
        process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else 2,  # rank 0 prints the results; what others print is no result
            env=environment,
            pass_fds=(report,),
            preexec_fn=prepare,  # noqa: PLW1509 -- this process has no other threads
        )
    except OSError as error:
        os.close(report)
        raise ResourceError("LK7003", f"rank {rank} could not be started: {error.strerror}") from error
    return _Rank(process, report)


def _wait(ranks: Sequence[_Rank], stopping: set[signal.Signals]) -> int | None:
    """Waits until all ranks ended; returns the one of ``stopping`` that this process was told to stop by, or None."""
    limit = float("inf")
    while True:
        found = signal.sigtimedwait({*stopping, signal.SIGCHLD}, _POLL_SECONDS)
        if found is not None and found.si_signo in stopping:
            return found.si_signo
        _note_ends(ranks)
        if all(rank.end for rank in ranks) or time.monotonic() > limit:
            return None
        if limit == float("inf") and any(rank.end and rank.end.status for rank in ranks):
            limit = time.monotonic() + NOTICE_SECONDS


def _note_ends(ranks: Sequence[_Rank]) -> None:
    for number, rank in enumerate(ranks):
        if rank.end is None and (status := rank.process.poll()) is not None:
            report = read_report(rank.report)
            rank.end = RankEnd(number, status, report, report.moment if report else time.monotonic())


def _kill(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.process.wait()
        os.close(rank.report)
