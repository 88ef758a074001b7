"""Looking into a group: a barrier that names who is missing, and the flight record of a rank."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.runtimes.collective.failures import usage
from lowerkit.runtimes.collective.tracing.flight_recorder import flight_record
from lowerkit.runtimes.collective.tracing.flight_recorder import write_flight_record as write_document


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Waits until all ranks are there, or says which are not.

    Args:
        group: a group of this backend; None: the default group.
        timeout: until all ranks must be there; None: the group's.
        wait_all_ranks: name all ranks that did not come, rather than the first.

    Raises:
        UsageError: LK1010, the group is not one of this backend.
        DistBackendError: LK8008, a rank did not come.
    """
    _ours(group).monitored_barrier(timeout, wait_all_ranks)


def write_flight_record(path: str | os.PathLike[str], group: dist.ProcessGroup | None = None) -> None:
    """Writes the group's last operations on this rank as JSON (see docs/collectives.md).

    Raises:
        UsageError: LK1010, the group is not one of this backend, or the file cannot be written.
    """
    ours = _ours(group).group
    write_document(path, flight_record(ours.native, ours.name, ours.rank, ours.size))


def _ours(group: dist.ProcessGroup | None) -> ProcessGroup:
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, ProcessGroup):
        raise usage(f"{found!r} is no group of the backend lowerkit")
    return found
