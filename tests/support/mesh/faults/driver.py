"""Starts the ranks of a cell, takes what they say, and judges it.

A cell passes if every rank that is left has its error (or its results) within the cell's deadline; the errors name the
rank to blame, the step, the operation and the line of the model; the ranks that are left run the model again; and no
process holds a descriptor, a mapping, a thread or a process more than at first.
"""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lowerkit.runtimes.collective.tracing.flight_record_file import to_flight_record
from lowerkit.runtimes.collective.tracing.trace import Trace
from lowerkit.runtimes.mesh.places import rank_name
from lowerkit.runtimes.mesh.structs import MeshAxis
from tests.support.mesh.faults.cells import JOIN_SECONDS, VICTIM, Cell
from tests.support.mesh.faults.network import OTHER_MESH, Artifacts
from tests.support.mesh.faults.rank import Line, run_cell
from tests.support.processes import collect, start_ranks

_SHARED_FILES = Path("/dev/shm")
_BETWEEN_RUNS = "the run cannot begin"


@dataclass
class Outcome:
    """How a cell went.

    Attributes:
        cell: which.
        problems: what is wrong; empty: passed.
        seconds: from the fault until the last rank that is left had its error or its results.
        message: the error of the first of them, empty where there is none.
    """

    cell: Cell
    problems: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    message: str = ""


def run(cell: Cell, made: Artifacts) -> Outcome:
    """Runs one cell in processes of its own."""
    before = _shared_files()
    with tempfile.TemporaryDirectory(prefix="lowerkit-mesh-faults-") as folder:
        found = collect(start_ranks(run_cell, cell.size, cell, made, folder), 2 * JOIN_SECONDS)
    lines = {rank: line for rank, line in enumerate(found) if isinstance(line, Line)}
    outcome = Outcome(cell, list(_ends(cell, found)))
    outcome.problems += judge(cell, lines)
    outcome.problems += [f"the file {name} is left in {_SHARED_FILES}" for name in _shared_files() - before]
    left = [lines[rank] for rank in cell.survivors if rank in lines]
    outcome.seconds = max((line.seconds for line in left), default=0.0)
    outcome.message = next((line.message for line in left if line.message), "")
    return outcome


def judge(cell: Cell, lines: Mapping[int, Line]) -> list[str]:
    """Returns what the ranks said otherwise than the cell demands.

    Args:
        cell: which.
        lines: by rank, of those that said anything.
    """
    problems: list[str] = []
    for rank, line in lines.items():
        problems += [f"rank {rank}: {text}" for text in _of_rank(cell, rank, line)]
    if cell.fault == "slow" and not problems:
        problems += _blame(cell, lines)
    return problems


def _of_rank(cell: Cell, rank: int, line: Line) -> Iterator[str]:
    if not line.right:
        yield "its outputs are wrong"
    yield from _leaks(line)
    if rank not in cell.survivors:
        if "LK8007" not in line.again.get("error", ""):
            yield f"it comes too late, but goes on with {line.again}"
        return
    if line.seconds > cell.deadline:
        yield f"it took {line.seconds:.2f} s, its deadline is {cell.deadline} s"
    if cell.code is None:
        if line.code is not None:
            yield f"it failed: {line.message}"
        return
    yield from _of_message(cell, rank, line)
    if line.again != {"size": len(cell.survivors), "right": True}:
        yield f"it goes on with {line.again}"


def _of_message(cell: Cell, rank: int, line: Line) -> Iterator[str]:
    """Yields what an error does not name."""
    told = (cell.code,) if cell.starts else (cell.code, "LK8011")  # another rank may have been the first to know
    if line.code not in told:
        yield f"code {line.code}: {line.message}"
    blamed = rf"\brank {VICTIM}\b" if rank != VICTIM else r"\brank [023]\b"
    if not re.search(blamed, line.message):
        yield f"the error does not name the rank: {line.message}"
    if cell.starts:
        other_mesh = cell.fault == "another mesh"
        wanted = [cell.mesh, OTHER_MESH[cell.mesh]] if other_mesh else ["model.", "other.", "content id"]
    else:
        wanted = [rank_name(_axes(cell.mesh), rank)]
        wanted += [] if _BETWEEN_RUNS in line.message else ["in step '", "network.py:"]
        if not re.search(r"\ball_(reduce|gather)\b", line.message):
            yield f"the error does not name the operation: {line.message}"
    missing = [text for text in wanted if text not in line.message]
    if missing:
        yield f"the error does not say {', '.join(missing)}: {line.message}"


def _axes(mesh: str) -> list[MeshAxis]:
    return [MeshAxis(name, int(size)) for name, _, size in (axis.partition("=") for axis in mesh.split(","))]


def _blame(cell: Cell, lines: Mapping[int, Line]) -> Iterator[str]:
    group = lines[VICTIM].record["group"]  # a rank may be in another one
    records = [line.record for line in lines.values() if line.record["group"] == group]
    caused = {row.rank: row.caused for row in Trace.of(map(to_flight_record, records)).ranks}
    least = cell.slow / 2 * 1e9
    if caused[VICTIM] < least or any(blame >= least for rank, blame in caused.items() if rank != VICTIM):
        yield f"the flight records blame {caused} (nanoseconds by rank)"


def _leaks(line: Line) -> Iterator[str]:
    for what, count in line.after.items():
        if count > line.before[what]:
            yield f"it holds {count} {what}, {line.before[what]} at first"


def _ends(cell: Cell, found: list[object]) -> Iterator[str]:
    for rank, end in enumerate(found):
        killed = cell.fault == "SIGKILL" and rank == VICTIM
        if killed != (end == -signal.SIGKILL) or not (killed or isinstance(end, Line)):
            yield f"rank {rank} ended with {end}"


def _shared_files() -> set[str]:
    return {path.name for path in _SHARED_FILES.iterdir() if "lowerkit" in path.name}
