"""What each rank of a mesh starts with, compared by all of them before they connect.

Each rank publishes a line in the store: which artifact, which program of it, for which mesh, of how many ranks, with
which lowerkit. A rank that finds another line than its own waits a moment, since a line may be that of a dead rank
whose place a new one is about to take, and is refused then; so are all others, each with both sides.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.failures import CollectiveFault, not_formed
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from lowerkit.runtimes.collective.rendezvous.published_line import MOST_BYTES, PublishedLine
from lowerkit.runtimes.collective.rendezvous.store import Store
from lowerkit.runtimes.manifest import Manifest, ProgramSpec
from lowerkit.runtimes.mesh.places import mesh_label

SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_ID_DIGITS = 12
_MOST_PATH = 512  # a character is up to six bytes of a line


@dataclass(frozen=True)
class RankStart(PublishedLine):
    """What one rank starts with: its line in the store.

    Attributes:
        artifact: path of the file, as this rank names it; two ranks may name one file differently.
        content_id: of the artifact.
        program: name of the program in it.
        target: what the program was compiled for.
        mesh: its axes, such as ``tp=2``; empty: it is for one rank.
        size: how many ranks this rank expects.
        version: of lowerkit.
    """

    artifact: str
    content_id: str
    program: str
    target: str
    mesh: str
    size: int
    version: str

    @staticmethod
    def of(path: object, manifest: Manifest, program: ProgramSpec, size: int, version: str) -> RankStart:
        """Returns the line of a rank that runs ``program`` of the artifact at ``path``."""
        name, mesh = str(path)[-_MOST_PATH:], mesh_label(program)
        return RankStart(name, manifest.content_id, program.name, program.label, mesh, size, version)

    def differences(self, rank: int, own: RankStart) -> list[str]:
        """Returns what this line of ``rank`` has otherwise than ``own``, with both sides; one text for each."""
        found: list[str] = []
        if self.version != own.version:
            found.append(f"rank {rank} has lowerkit {self.version}, this rank has {own.version}")
        if self.content_id != own.content_id:
            theirs, ours = (f"{start.artifact} (content id {start.content_id[:_ID_DIGITS]})" for start in (self, own))
            found.append(f"rank {rank} has model {theirs}, this rank has {ours}")
        elif (self.program, self.target) != (own.program, own.target):
            theirs, ours = (f"{start.program} for {start.target}" for start in (self, own))
            found.append(f"rank {rank} runs the program {theirs}, this rank {ours}")
        if self.mesh != own.mesh:
            theirs, ours = (f"the mesh {start.mesh}" if start.mesh else "one rank" for start in (self, own))
            found.append(f"rank {rank} has a program for {theirs}, this rank one for {ours}")
        if self.size != own.size:
            found.append(f"rank {rank} was started as one of {self.size} ranks, this rank as one of {own.size}")
        return found


@contextmanager
def agreement(store: Store, name: str, rank: int, own: RankStart, seconds: float) -> Generator[None]:
    """Holds this rank's line in the store for the block, which begins when the lines of all ranks are equal.

    Args:
        store: reached by all ranks.
        name: of the group that they are about to make.
        rank: this rank.
        own: what it starts with; ``own.size`` ranks are waited for.
        seconds: until all ranks must be there.

    Raises:
        CollectiveFault: LK8022, ranks start with something else; LK8007, ranks did not come (they are named).
    """
    key = _key(name, rank)
    store.set(key, own.to_bytes())
    try:
        _compare(store, name, rank, own, Deadline(seconds))
        yield
    finally:
        store.delete(key)


def agree(group: Group, own: RankStart) -> None:
    """Returns when all ranks of a group that there is start with the same. The group stays what it is otherwise.

    Raises:
        CollectiveFault: LK8022, ranks start with something else; LK8008 to LK8012, the group failed.
    """
    line = np.zeros(MOST_BYTES, np.uint8)
    data = own.to_bytes()
    line[: len(data)] = np.frombuffer(data, np.uint8)
    rows = group.run(group.calls.all_gather(line))
    starts = {rank: RankStart.from_bytes(rank, row.tobytes().rstrip(b"\0")) for rank, row in enumerate(rows)}
    if differences := {rank: found for rank, start in starts.items() if (found := start.differences(rank, own))}:
        raise _disagreement(group.name, group.rank, differences)


def _compare(store: Store, name: str, rank: int, own: RankStart, deadline: Deadline) -> None:
    lines: dict[int, RankStart] = {}
    others = [other for other in range(own.size) if other != rank]
    settled: Deadline | None = None
    while True:
        missing = [other for other in others if other not in lines]
        # Waits for one and looks at all: those that differ may be replaced by new ones, or give up.
        for other in others:
            pause = _LOOK_SECONDS if other in missing[:1] else 0.0
            try:
                lines[other] = RankStart.from_bytes(other, store.get(_key(name, other), pause))
            except TimeoutError:
                continue
        differences = {other: found for other, line in lines.items() if (found := line.differences(other, own))}
        missing = [other for other in others if other not in lines]
        if not differences:
            settled = None
            if not missing:
                return
        elif settled is None:
            settled = Deadline(SETTLE_SECONDS)
        elif settled.expired():
            raise _disagreement(name, rank, differences)
        elif not missing:
            time.sleep(_LOOK_SECONDS)
        if deadline.expired() and settled is None:
            raise _did_not_come(name, rank, missing, own.size, deadline.timeout)


def _disagreement(name: str, rank: int, differences: Mapping[int, Sequence[str]]) -> LowerkitError:
    first, *further = [text for other in sorted(differences) for text in differences[other]]
    return CollectiveFault(
        "LK8022",
        f"group {name!r}, rank {rank}: {first}",
        details=further,
        hint="start every rank with the same file, --target and number of ranks, in one version of lowerkit",
    )


def _did_not_come(name: str, rank: int, missing: Sequence[int], size: int, seconds: float) -> LowerkitError:
    names = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, missing))
    return not_formed(
        f"group {name!r}, rank {rank}: {names} of {size} did not come within {seconds:.3g} s",
        hint="see the output of those ranks; were they started, with the same store? --rank-deadline waits longer",
    )


def _key(name: str, rank: int) -> str:
    return f"lowerkit/{name}/start/{rank}"
