"""How many threads a run should use: the physical cores that this process may run on.

Two hyperthreads of one core share its multipliers; a second one gives a dense kernel nothing and costs cache. A
container's CPU quota counts too: threads beyond it only wait for each other.
"""

from __future__ import annotations

import os
from pathlib import Path

from lowerkit.errors import ResourceError, UsageError
from lowerkit.runtimes import _native
from lowerkit.runtimes.mapping.address_space import limit_lines

_MOST_THREADS = 1024


def default_threads() -> int:
    """Returns the number of physical cores in this process's affinity mask, at most its cgroup's CPU quota."""
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    quota = _cgroup_quota()
    return max(1, len(cores) if quota is None else min(len(cores), quota))


def threads_of_rank(threads: int | None, ranks: int = 1) -> int:
    """Returns the threads of a run.

    Args:
        threads: as asked for; None: the default, divided by the ranks.
        ranks: how many run on this machine at one time.

    Raises:
        UsageError: LK1009, ``threads`` is out of range.
    """
    if threads is None:
        return max(1, default_threads() // ranks)
    if not 1 <= threads <= _MOST_THREADS:
        raise UsageError("LK1009", f"threads is {threads}, expected 1 to {_MOST_THREADS}")
    return threads


def thread_pool(threads: int) -> _native.ThreadPool:
    """Returns threads for the runs of a session, the caller's counted.

    Raises:
        ResourceError: LK7002, the system gives no more, or there is no room for their stacks.
    """
    try:
        return _native.ThreadPool(threads)
    except OSError as error:
        reason = f"{threads} threads cannot be started: {error.strerror or error}"
        raise ResourceError(
            "LK7002", reason, details=limit_lines(), hint="`--threads 1` needs no further ones"
        ) from error


def _siblings(cpu: int) -> str:
    """Returns a name of the core that ``cpu`` belongs to: the list of its hyperthreads."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _cgroup_quota() -> int | None:
    """Returns the CPU quota of the cgroup (version 2), rounded up; None where there is none."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    if not (quota.isdigit() and period.isdigit() and int(period) > 0):
        return None  # "max"
    return max(1, -(-int(quota) // int(period)))
