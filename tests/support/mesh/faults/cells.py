"""What the matrix of compiled models consists of: faults, transports, and the time that each cell may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tests.support.faults.cells import BUSY_GRACE_SECONDS, BUSY_SLOW_SECONDS
from tests.support.ranks import PATIENCE

Fault = Literal["SIGKILL", "SIGSTOP", "slow", "another artifact", "another shape", "another mesh"]
Transport = Literal["shm", "tcp"]

FAULTS: tuple[Fault, ...] = ("SIGKILL", "SIGSTOP", "slow", "another artifact", "another shape", "another mesh")
TRANSPORTS: tuple[Transport, ...] = ("shm", "tcp")

MESHES = {"tp=3": 3, "dp=2,tp=2": 4}
"""By mesh, how many ranks it has. In the second one the victim shares a group with ranks 0 and 3, none with rank 2."""
VICTIM = 1
SLOW_SECONDS = 0.4
# How long after its fault a cell may take.
GRACE_SECONDS = 4.0
JOIN_SECONDS = PATIENCE


@dataclass(frozen=True)
class Cell:
    """One fault of rank ``VICTIM`` over one transport.

    Attributes:
        fault: ``SIGKILL`` and ``SIGSTOP`` strike somewhere in a run; a slow rank comes late to one; with ``another
            artifact`` or ``another mesh`` it starts, with ``another shape`` it makes a run.
        transport: ``tcp``: shared memory is forbidden.
        mesh: of the model.
        grace: seconds that a rank may take to notice the fault.
        slow: seconds that a slow rank is late.
    """

    fault: Fault
    transport: Transport
    mesh: str = "tp=3"
    grace: float = GRACE_SECONDS
    slow: float = SLOW_SECONDS

    @property
    def name(self) -> str:
        """The cell's name, unique in the matrix."""
        return f"{self.fault}/{self.transport}/{self.mesh}"

    @property
    def size(self) -> int:
        """Number of ranks."""
        return MESHES[self.mesh]

    @property
    def starts(self) -> bool:
        """Whether it is about what ranks start with: none of them comes to run."""
        return self.fault in ("another artifact", "another mesh")

    @property
    def timeout(self) -> float:
        """Seconds that ranks wait for each other in a collective: short where time alone reveals the fault."""
        return 1.0 if self.fault == "SIGSTOP" else 8 * self.grace

    @property
    def deadline(self) -> float:
        """Seconds within which each rank that is left has its error, or its results, from the fault on."""
        return self.grace + (self.timeout if self.fault == "SIGSTOP" else 0.0)

    @property
    def survivors(self) -> tuple[int, ...]:
        """Ranks that go on."""
        gone = self.fault in ("SIGKILL", "SIGSTOP")
        return tuple(rank for rank in range(self.size) if not (gone and rank == VICTIM))

    @property
    def code(self) -> str | None:
        """Of the error of each rank that is left; None: they have their results."""
        return {"SIGKILL": "LK8009", "SIGSTOP": "LK8008", "another shape": "LK8010"}.get(
            self.fault, "LK8022" if self.starts else None
        )

    def patient(self) -> Cell:
        """Returns the cell for a machine that has much else to do."""
        return replace(self, grace=BUSY_GRACE_SECONDS, slow=BUSY_SLOW_SECONDS)


def cells() -> Iterator[Cell]:
    """Yields all cells."""
    for fault in FAULTS:
        for transport in TRANSPORTS:
            for mesh in MESHES:
                yield Cell(fault, transport, mesh)
