"""One rank of a cell: it meets the others, runs the model, suffers the fault, and goes on with those that are left."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.collective.tracing.flight_recorder import flight_record
from lowerkit.runtimes.mesh.groups import axis_groups
from lowerkit.runtimes.mesh.ranks import join_mesh
from lowerkit.runtimes.session import Session, load
from tests.support.faults.rank import holdings
from tests.support.mesh.faults.cells import JOIN_SECONDS, VICTIM, Cell
from tests.support.mesh.faults.network import LEFT, OTHER_MESH, Artifacts
from tests.support.processes import await_files

_WARM_UP_RUNS = 3
_STRIKE_SECONDS = 0.05


@dataclass
class Line:
    """How a cell went on one rank.

    Attributes:
        code, message: of the error; None and empty where the runs gave their results.
        seconds: from the fault until then.
        right: whether every output was the model's.
        again: how the ranks that are left went on: how many they are, and whether the model's outputs are right there;
            or the error.
        record: what the flight recorder of the group along ``tp`` holds; empty where none came about.
        before, after: what the process held at first and at the end.
    """

    code: str | None = None
    message: str = ""
    seconds: float = 0.0
    right: bool = True
    again: dict[str, Any] = field(default_factory=dict[str, Any])
    record: dict[str, Any] = field(default_factory=dict[str, Any])
    before: dict[str, int] = field(default_factory=dict[str, int])
    after: dict[str, int] = field(default_factory=dict[str, int])


def run_cell(rank: int, size: int, cell: Cell, made: Artifacts, folder: str) -> Line:
    """Runs a cell on this rank; a process for each calls it.

    Args:
        rank, size: of the mesh.
        cell: which.
        made: the artifacts.
        folder: an existing one, for the ranks of this cell alone.
    """
    line = Line(before=holdings())
    store, reach = DirectoryStore(f"{folder}/store"), RendezvousOptions(shared_memory=cell.transport == "shm")
    if cell.starts:
        _start_differently(line, rank, cell, made, store, reach)
    else:
        _run(line, rank, cell, made, store, reach, Path(folder))
    gc.collect()
    line.after = holdings()
    return line


def _start_differently(
    line: Line, rank: int, cell: Cell, made: Artifacts, store: DirectoryStore, reach: RendezvousOptions
) -> None:
    others = made.of_mesh[OTHER_MESH[cell.mesh]] if cell.fault == "another mesh" else made.others[cell.mesh]
    started = time.monotonic()
    try:
        join_mesh(
            others if rank == VICTIM else made.of_mesh[cell.mesh],
            store,
            rank,
            cell.size,
            deadline=JOIN_SECONDS,
            reach=reach,
            threads=1,
        )
    except LowerkitError as error:
        line.code, line.message = error.code, error.render()
    line.seconds = time.monotonic() - started
    session = join_mesh(
        made.of_mesh[cell.mesh], store, rank, cell.size, name="again", deadline=JOIN_SECONDS, reach=reach, threads=1
    )
    line.again = {"size": cell.size, "right": _is_right(session, made)}


def _run(
    line: Line, rank: int, cell: Cell, made: Artifacts, store: DirectoryStore, reach: RendezvousOptions, folder: Path
) -> None:
    # Ranks may come late to their first runs; where time alone reveals the fault they have a group with less patience.
    session = join_mesh(made.of_mesh[cell.mesh], store, rank, cell.size, deadline=JOIN_SECONDS, reach=reach, threads=1)
    rights = [_is_right(session, made) for _ in range(_WARM_UP_RUNS)]
    group = Group.join(store, "runs", rank, cell.size, replace(reach, timeout=JOIN_SECONDS), timeout=cell.timeout)
    session = load(made.of_mesh[cell.mesh], threads=1, group=group)
    rights.append(_is_right(session, made))
    # A rank that is ahead would end the group while another is still in the last collective of the run before.
    (folder / f"ready{rank}").touch()
    await_files(*(folder / f"ready{other}" for other in range(cell.size)))
    started = time.monotonic()
    try:
        _suffer(session, rank, cell, made, folder)
        rights.append(_is_right(session, made))
    except LowerkitError as error:
        line.code, line.message = error.code, error.render()
    line.seconds = time.monotonic() - started
    line.right = all(rights)
    along = axis_groups(group, session.program.mesh).by_axis["tp"]
    line.record = flight_record(along.native, along.name, along.rank, along.size)
    if cell.code is not None:
        line.again = _go_on(group, cell, made)
    group.close()
    if cell.fault == "SIGSTOP" and rank == min(cell.survivors):
        os.kill(int((folder / "victim").read_text()), signal.SIGCONT)


def _suffer(session: Session, rank: int, cell: Cell, made: Artifacts, folder: Path) -> None:
    """Runs the model until the fault has struck; raises what a run raises."""
    victim = rank == VICTIM
    if cell.fault == "another shape":
        session.run(made.x[:, : 3 if victim else 4])
    elif cell.fault == "slow":
        if victim:
            time.sleep(cell.slow)
    else:
        if victim:
            (folder / "victim").write_text(str(os.getpid()))
            number = signal.SIGKILL if cell.fault == "SIGKILL" else signal.SIGSTOP
            threading.Timer(_STRIKE_SECONDS, os.kill, (os.getpid(), number)).start()
        while True:
            session.run(made.x)


def _go_on(group: Group, cell: Cell, made: Artifacts) -> dict[str, Any]:
    """Shrinks the group and runs the model in what is left."""
    try:
        smaller = group.shrink(cell.timeout)
    except LowerkitError as error:
        return {"error": error.render()}
    session = load(made.of_mesh[LEFT[smaller.size]], threads=1, group=smaller)
    right = _is_right(session, made)
    smaller.close()
    return {"size": smaller.size, "right": right}


def _is_right(session: Session, made: Artifacts) -> bool:
    return bool(np.allclose(session.run(made.x)[0], made.y, rtol=1e-4, atol=1e-5))
