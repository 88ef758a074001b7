"""``lowerkit.load``: one session, one rank's session of a group, or replicas that share each batch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, overload

from lowerkit.errors import UsageError
from lowerkit.runtimes.manifest import MAIN_PROGRAM
from lowerkit.runtimes.session import Integrity, Session

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.group import Group
    from lowerkit.runtimes.replicas.session import ReplicatedSession


@overload
def load(
    path: str | os.PathLike[str],
    *,
    replicas: None = None,
    threads: int | None = None,
    integrity: Integrity = "checksum",
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
    group: Group | None = None,
) -> Session: ...


@overload
def load(
    path: str | os.PathLike[str],
    *,
    replicas: int,
    threads: int | None = None,
    integrity: Integrity = "checksum",
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
    group: None = None,
) -> ReplicatedSession: ...


def load(
    path: str | os.PathLike[str],
    *,
    replicas: int | None = None,
    threads: int | None = None,
    integrity: Integrity = "checksum",
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
    group: Group | None = None,
) -> Session | ReplicatedSession:
    """Loads an artifact.

    Args:
        path: the ``.lk`` file.
        replicas: None, or how many copies run the rows of each batch at the same time, in this process.
        threads: of a run, or of each replica; None: the physical cores this process may use, divided by the replicas.
        integrity, target, program, device: as for :meth:`~lowerkit.runtimes.session.Session.load`.
        group: the ranks that run a program for a mesh together, of which this process is one.

    Raises:
        UsageError: LK1009, both ``replicas`` and ``group`` are given.
        LowerkitError: as :meth:`~lowerkit.runtimes.session.Session.load` and
            :meth:`~lowerkit.runtimes.replicas.session.ReplicatedSession.load`.
    """
    if replicas is None:
        return Session.load(
            path, threads=threads, integrity=integrity, target=target, program=program, device=device, group=group
        )
    if group is not None:
        raise UsageError(
            "LK1009",
            f"replicas={replicas} and a group exclude each other",
            hint="replicas are copies in one process; the ranks of a group share one model",
        )
    from lowerkit.runtimes.replicas.session import ReplicatedSession

    return ReplicatedSession.load(
        path, replicas, threads=threads, integrity=integrity, target=target, program=program, device=device
    )
