"""One rank of the fault matrix: ``python -m tests.support.faults.rank JSON`` runs cells and prints a line for each.

A line says how the cell went on this rank: the error's code and text, the seconds until it came, what the group of
those that are left computed, the flight record, and at the end of all cells what the process holds that it did not
hold at first.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.rendezvous import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.collective.tracing.flight_recorder import flight_record
from tests.support.faults import cells, operations
from tests.support.faults.cells import FAULTY_STEP, SIZE, STEPS, SUBGROUP, VICTIM, Cell

_PR_SET_PDEATHSIG = 1
_LARGE = 1 << 18  # elements: some milliseconds, so that a rank can die within
_BURST = 12_000  # elements: more packets at once than the wire's queue holds
_LEAST_FILE = 1 << 16  # bytes: no group's memory fits


def main(specification: str) -> None:
    """Runs the cells of the specification: JSON, with the keys that ``driver.py`` gives it."""
    # Nothing outlives the test, however it ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    given = json.loads(specification)
    if os.getppid() != given["parent"]:
        return  # it ended before it could be said that this is to end with it
    rank, interface = int(given["rank"]), given["interface"]
    store = DirectoryStore(given["store"])
    before = holdings()
    resident: list[int] = []
    for number, fields in enumerate(given["cells"]):
        cell = Cell(**fields)
        say(run_cell(store, f"{number}/{cell.name}", cell, rank, interface, given["command"]))
        gc.collect()
        resident.append(resident_bytes())
    # The first cells load what all need.
    grown = resident[-1] - resident[min(2, len(resident) - 1)]
    say({"end": rank, "before": before, "after": holdings(), "grown": grown})


def say(document: dict[str, Any]) -> None:
    """Prints one line."""
    print(json.dumps(document), flush=True)


def holdings() -> dict[str, int]:
    """Counts what this process holds: descriptors, mappings of shared memory, threads, processes that it started."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    tasks = list(Path("/proc/self/task").iterdir())
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "shared mappings": maps.count("memfd:"),
        "threads": len(tasks),
        "processes": sum(len((task / "children").read_text().split()) for task in tasks),
    }


def resident_bytes() -> int:
    """Returns the memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def run_cell(
    store: DirectoryStore, name: str, cell: Cell, rank: int, interface: str | None, command: list[str]
) -> dict[str, Any]:
    """Runs one cell on this rank; the line that says how it went."""
    line: dict[str, Any] = {"cell": cell.name, "rank": rank, "code": None, "message": "", "group": name}
    options = RendezvousOptions(interface=interface, shared_memory=cell.transport != "tcp", timeout=cells.JOIN_SECONDS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    started = time.monotonic()
    try:
        if cell.fault == "no memory":
            resource.setrlimit(resource.RLIMIT_FSIZE, (_LEAST_FILE, limits[1]))
        group = Group.join(store, name, rank, SIZE, options, timeout=cell.timeout)
    except LowerkitError as error:
        line.update(code=error.code, message=error.render(), seconds=time.monotonic() - started)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        line["left"] = go_on_with_memory(store, name, rank, interface)
        return line
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    team = group
    if cell.operation == SUBGROUP:
        team = group.split(int(rank > VICTIM)) or group
    started = time.monotonic()
    try:
        for number in range(1, STEPS + 1):
            run_step(team, cell, number, command if rank == VICTIM and number == FAULTY_STEP else None)
        # Who only sends, and little, may have waited for nobody so far: here each rank depends on all. Who is not in
        # the team waits here from the start.
        group.run(group.calls.barrier(), cell.timeout if team is group else 3 * cell.timeout)
    except LowerkitError as error:
        line.update(code=error.code, message=error.render())
    except operations.Wrong as error:
        line.update(code="wrong", message=str(error))
    line["seconds"] = time.monotonic() - started
    line["record"] = flight_record(team.native, team.name, team.rank, team.size)
    if not cell.succeeds:
        line["left"] = go_on(group, cell, rank)
    team.close()
    group.close()
    return line


def run_step(group: Group, cell: Cell, number: int, command: list[str] | None) -> None:
    """Runs one operation of a cell; where there is a ``command`` the fault strikes here."""
    elements, dtype, operation = operations.ELEMENTS, "int64", cell.operation
    if operation == SUBGROUP:
        operation = "all_reduce"
    if number == FAULTY_STEP and cell.fault == "killed within":
        elements = _LARGE
    elif cell.fault == "loss":
        elements = _BURST
    if command is not None:
        strike(operations.Step(group, number, cell.root, elements), operation, cell, command)
        elements += cell.fault == "shape"
        dtype = "float64" if cell.fault == "dtype" else "int64"
        if cell.fault == "desync":
            operation = "all_reduce" if operation == "barrier" else "barrier"
    operations.run(operations.Step(group, number, cell.root, elements, dtype), operation)


def strike(step: operations.Step, operation: str, cell: Cell, command: list[str]) -> None:
    """Does to this process what the cell is about; ``command`` cuts the wire."""
    match cell.fault:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "killed within":
            kept = operations.start(step, operation)
            time.sleep(0.0005)
            assert kept, "its arrays live until the end"
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "slow":
            time.sleep(cell.slow)
        case "partition":
            subprocess.run(command, check=True)
        case _:
            pass


def go_on(group: Group, cell: Cell, rank: int) -> dict[str, Any]:
    """Shrinks the group and computes in what is left; says who is in and whether the numbers are right."""
    if cell.fault == "partition" and rank not in cell.survivors:
        return {"error": "cut off"}  # from the store too, if that were not a folder
    try:
        smaller = group.shrink(cell.timeout)
        left = compute(smaller)
        smaller.close()
        return left
    except LowerkitError as error:
        return {"error": error.render()}


def go_on_with_memory(store: DirectoryStore, name: str, rank: int, interface: str | None) -> dict[str, Any]:
    """Does what the error for missing shared memory advises, with the limit gone."""
    options = RendezvousOptions(interface=interface, timeout=cells.JOIN_SECONDS)
    group = Group.join(store, f"{name}/again", rank, SIZE, options, timeout=cells.JOIN_SECONDS)
    left = compute(group)
    group.close()
    return left


def compute(group: Group) -> dict[str, Any]:
    """Runs an all_reduce; tells the group's size and whether every element is right."""
    total = group.run(group.calls.all_reduce(np.full(1000, group.rank + 1)))
    return {"size": group.size, "right": bool((total == group.size * (group.size + 1) // 2).all())}


if __name__ == "__main__":
    main(sys.argv[1])
