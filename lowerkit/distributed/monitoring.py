"""Looking into a group: a barrier that names who is missing, and the flight record of a rank.

``torch.distributed.monitored_barrier`` refuses every backend but gloo by its name. Once a group of ours exists it is
replaced by a function that serves our groups and hands all others to torch's own.
"""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.runtimes.collective.failures import usage
from lowerkit.runtimes.collective.flight_recorder import flight_record
from lowerkit.runtimes.collective.flight_recorder import write_flight_record as write_document


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


def serve_torch_function() -> None:
    """Makes ``torch.distributed.monitored_barrier`` serve groups of this backend; may be called again."""
    own = distributed_c10d.monitored_barrier
    if hasattr(own, "serves_lowerkit"):
        return

    @functools.wraps(own)
    def serving(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        found = dist.group.WORLD if group is None else group
        if not isinstance(found, ProcessGroup):
            return own(group, timeout, wait_all_ranks)
        limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        return found.monitored_barrier(limit, wait_all_ranks)

    setattr(serving, "serves_lowerkit", True)  # noqa: B010 -- functions have no such attribute for a type checker
    for module in (distributed_c10d, dist):
        setattr(module, "monitored_barrier", serving)  # noqa: B010


def _ours(group: dist.ProcessGroup | None) -> ProcessGroup:
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, ProcessGroup):
        raise usage(f"{found!r} is no group of the backend lowerkit")
    return found
