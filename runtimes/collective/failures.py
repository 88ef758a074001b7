"""Failures of groups as errors of lowerkit: the native statuses, each with its code and its way out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from lowerkit.errors import LowerkitError, ResourceError, RuntimeFault, UsageError


class Status(IntEnum):
    """``lk_status`` of ``lowerkit_collective.h``."""

    OK = 0
    INVALID = 1
    TIMEOUT = 2
    PEER_LOST = 3
    DESYNC = 4
    ABORTED = 5
    RESOURCES = 6
    PROTOCOL = 7
    PENDING = 8
    DIED = 9
    INTERRUPTED = 10


class CollectiveFault(RuntimeFault):
    """Ranks of a group failed each other: the group cannot go on as it is, see :meth:`Group.shrink`."""


class RankDied(BaseException):
    """This rank died in a simulation. Like the end of a process it is no ``Exception``: nothing goes on after it."""


_FAULTS = {
    Status.TIMEOUT: ("LK8008", "the rank named is slow, stopped or gone; a longer timeout helps if it is slow"),
    Status.PEER_LOST: ("LK8009", "see that rank's own output; shrink() makes a group of the ranks that are left"),
    Status.DESYNC: ("LK8010", "every rank of a group makes the same calls in the same order"),
    Status.ABORTED: ("LK8011", "the reason is the first failure; shrink() makes a group of the ranks that are left"),
    Status.INTERRUPTED: ("LK8011", "a signal's handler raised while the operation waited; shrink() makes a new group"),
    Status.PROTOCOL: ("LK8012", "all ranks need the same version of lowerkit"),
}


def from_native(status: int, message: str) -> LowerkitError:
    """Returns the error for a native status; unknown ones count as a broken protocol.

    Raises:
        RankDied: the status is that of a rank that died in a simulation.
    """
    if status == Status.DIED:
        raise RankDied(message)
    if status == Status.INVALID:
        return UsageError("LK1010", message)
    if status == Status.RESOURCES:
        return ResourceError("LK7004", message, hint="a container's memory or descriptor limit may be too low")
    try:
        code, hint = _FAULTS[Status(status)]
    except (KeyError, ValueError):
        code, hint = _FAULTS[Status.PROTOCOL]
    return CollectiveFault(code, message, hint=hint)


def usage(message: str, *, hint: str | None = None) -> UsageError:
    """Returns the error for a call that cannot be made; nothing was sent."""
    return UsageError("LK1010", message, hint=hint)


def not_formed(message: str, *, details: Sequence[str] = (), hint: str | None = None) -> CollectiveFault:
    """Returns the error for a group that did not come about."""
    return CollectiveFault("LK8007", message, details=details, hint=hint)


def refused(message: str, *, hint: str | None = None) -> CollectiveFault:
    """Returns the error for a peer that does not know the job token or speaks another protocol."""
    return CollectiveFault("LK8012", message, hint=hint)


def no_memory(message: str, *, hint: str | None = None) -> ResourceError:
    """Returns the error for shared memory or descriptors that ran out."""
    return ResourceError("LK7004", message, hint=hint)
