"""Runs a command in a child process wherever packages of others take part, so that one that hangs or ends the process
is named.

Steps: fork before anything of the package is imported; the child goes on with the command, and notes each call into a
package (:mod:`lowerkit.runtimes.supervised.record`); the parent waits, hands signals on, and ends as the child does.
Where the child ends within a call, or one call takes longer than the deadline, the parent names the package. Output of
a command is replaced at its end, so an earlier one stays whole.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.supervised.record import ForeignCall, Record, keep_record

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import Manifest

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 3.0
"""Within which a call into a package has to end after a signal that stops the command."""

OWN = frozenset({"cpu", "cuda"})
"""Targets and devices of this package: nobody else is to be named for them, and a simulated card takes its time."""
_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


@dataclass(frozen=True)
class Supervision:
    """How a command is supervised: seconds that one call into a package may take; without it, it is not."""

    deadline: float


def supervise_targets(target: str) -> None:
    """Goes on in a child process where ``target`` names accelerators; their packages are watched from here on.

    Raises:
        CodegenError: LK5003, in the parent: a package ended the process, or did not answer in time.
        RuntimeFault: LK8016, in the parent: likewise, of a device.
        SystemExit: in the parent, with the exit code of the child.
    """
    names = [part.partition(":")[0].strip() for part in target.split("+")]
    if not OWN.issuperset(names):
        _supervise()


def supervise_devices(manifest: Manifest) -> None:
    """Goes on in a child process where a program of an artifact runs on devices; see :func:`supervise_targets`."""
    if any(device.name not in OWN for program in manifest.programs for device in program.devices):
        _supervise()


def read_manifest(artifact: Path) -> Manifest:
    """Returns the manifest of an artifact, which is checked as for a load.

    Raises:
        ArtifactError: as :func:`~lowerkit.runtimes.artifact_reader.open_artifact`.
    """
    from lowerkit.runtimes.artifact_reader import open_artifact

    opened = open_artifact(artifact)
    opened.close()
    return opened.manifest


def _supervise() -> None:
    context = click.get_current_context(silent=True)
    supervision = context.find_root().obj if context else None
    if not isinstance(supervision, Supervision):
        return
    record = Record()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child:
        _wait(child, record, supervision.deadline, watched)
    # A killed parent must not leave a child behind that nobody watches.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    keep_record(record)


def _wait(child: int, record: Record, deadline: float, watched: set[signal.Signals]) -> NoReturn:
    stopped: tuple[int, float] | None = None
    while True:
        found = signal.sigtimedwait(watched, _POLL_SECONDS)
        if found is not None and found.si_signo in _FORWARDED:
            stopped = stopped or (found.si_signo, time.monotonic())
            if found.si_code <= 0:
                os.kill(child, found.si_signo)  # a terminal sends it to the child, too (si_code > 0)
        ended, status = os.waitpid(child, os.WNOHANG)
        call = record.read()
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if call is not None and not _by_us(code):
                raise culprit(call, f"{call.method} ended the process ({_how(code)})")
            if code < 0:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
                signal.signal(-code, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
            raise SystemExit(code)
        if call is not None and stopped is not None and time.monotonic() - stopped[1] > _GRACE_SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise SystemExit(128 + stopped[0])
        if call is not None and time.monotonic() - call.start > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise culprit(call, f"{call.method} did not return within {deadline:g} s")


def _by_us(code: int) -> bool:
    """Whether a process ended by a signal that somebody sent to stop it."""
    return -code in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def culprit(call: ForeignCall, reason: str) -> LowerkitError:
    """Returns the error that names the package whose call ``call`` was."""
    from lowerkit.runtimes.device import failed_device
    from lowerkit.targets.registry import failed

    naming: dict[str, Callable[[str, str], LowerkitError]] = {"target": failed, "device": failed_device}
    return naming[call.kind](call.name, reason)
