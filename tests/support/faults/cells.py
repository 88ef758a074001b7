"""What the fault matrix consists of: faults, operations, transports, and the time that each cell may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tests.support.ranks import PATIENCE

Transport = Literal["shm", "tcp", "both", "inside"]
Fault = Literal[
    "killed", "killed within", "stopped", "desync", "shape", "dtype", "slow", "no memory", "partition", "loss"
]

TRANSPORTS: tuple[Transport, ...] = ("shm", "tcp", "both", "inside")
FAULTS: tuple[Fault, ...] = (
    "killed", "killed within", "stopped", "desync", "shape", "dtype", "slow", "no memory", "partition", "loss",
)  # fmt: skip
COLLECTIVES = (
    "barrier", "broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_to_all",
)  # fmt: skip
ROOTED = ("broadcast", "reduce", "scatter", "gather")
UNEQUAL = "unequal all_to_all"
PLAN = "plan"
COALESCED = "coalesced"
SUBGROUP = "subgroup"
MESSAGE = "message"
OPERATIONS = (*COLLECTIVES, UNEQUAL, PLAN, COALESCED, SUBGROUP, MESSAGE)
# What a plan runs by one call, and what is started together and then waited for.
SEVERAL = ("all_reduce", "broadcast", "all_gather")

SIZE = 3
VICTIM = 1
STEPS = 6
FAULTY_STEP = 3  # the sequence number at which the fault strikes: before it the group works
SLOW_SECONDS = 0.4
# How long after its fault a cell may take.
GRACE_SECONDS = 4.0
# The same on a machine with much else to do, and what a rank must be late by there to stand out.
BUSY_GRACE_SECONDS = 60.0
BUSY_SLOW_SECONDS = 1.0
JOIN_SECONDS = PATIENCE

# Faults after which the victim's process goes on, or can be made to.
_SURVIVED: frozenset[Fault] = frozenset({"desync", "shape", "dtype", "slow", "no memory", "loss"})
# Faults that a wire between namespaces is needed for.
WIRED: frozenset[Fault] = frozenset({"partition", "loss"})


@dataclass(frozen=True)
class Cell:
    """One fault in one operation over one transport.

    Attributes:
        fault: what befalls rank ``VICTIM`` when it should make operation ``FAULTY_STEP``.
        operation: a collective; ``plan`` and ``coalesced``: the three of ``SEVERAL``; ``subgroup``: an all_reduce in a
            group of ranks 0 and 1; or ``message``: a send from the victim to each other rank and one back.
        transport: ``tcp``: shared memory is forbidden; ``both``: the victim is on another host than the others;
            ``inside``: as well shared memory and TCP, but the victim shares a host with rank 0.
        root: of operations that have one.
        grace: seconds that a rank may take to notice the fault.
        slow: seconds that a slow rank is late.
    """

    fault: Fault
    operation: str
    transport: Transport
    root: int = 0
    grace: float = GRACE_SECONDS
    slow: float = SLOW_SECONDS

    @property
    def name(self) -> str:
        """The cell's name, unique in the matrix."""
        root = f"@{self.root}" if self.operation in ROOTED else ""
        return f"{self.fault}/{self.operation}{root}/{self.transport}"

    @property
    def wired(self) -> bool:
        """Whether the victim is put into a network namespace of its own."""
        return self.fault in WIRED or self.transport in ("both", "inside")

    @property
    def far(self) -> int:
        """The rank on the other side of the wire."""
        return SIZE - 1 if self.transport == "inside" else VICTIM

    @property
    def calls(self) -> tuple[str, ...]:
        """The collectives that one step makes, each with a sequence number; none: messages."""
        if self.operation in (PLAN, COALESCED):
            return SEVERAL
        if self.operation == MESSAGE:
            return ()
        return ({UNEQUAL: "all_to_all", SUBGROUP: "all_reduce"}.get(self.operation, self.operation),)

    @property
    def succeeds(self) -> bool:
        """Whether the operations succeed in spite of the fault."""
        return self.fault in ("slow", "loss") or (self.fault == "no memory" and self.transport == "tcp")

    @property
    def timeout(self) -> float:
        """Seconds that an operation may take: short where time itself reveals the fault, else far beyond the cell."""
        return 1.0 if self.fault in ("stopped", "partition") else 8 * self.grace

    @property
    def deadline(self) -> float:
        """Seconds within which each rank must have its error (or its results), from the first operation on."""
        waited = self.timeout if self.fault in ("stopped", "partition") else 0.0
        return waited + self.grace

    @property
    def survivors(self) -> tuple[int, ...]:
        """Ranks that go on in a smaller group (or in one of the same size, where nobody died)."""
        everybody = range(SIZE)
        return tuple(rank for rank in everybody if self.fault in _SURVIVED or rank != VICTIM)

    def patient(self) -> Cell:
        """Returns the cell for a machine that has much else to do."""
        return replace(self, grace=BUSY_GRACE_SECONDS, slow=BUSY_SLOW_SECONDS)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, for the ranks' command line."""
        return asdict(self)


def applies(fault: Fault, operation: str) -> bool:
    """Tells whether there is such a cell: a barrier has no shape, for one."""
    if operation == "barrier":
        return fault not in ("shape", "dtype")
    return operation != MESSAGE or fault != "desync"


def cells(fault: Fault, transport: Transport) -> Iterator[Cell]:
    """Yields all cells of a fault: every operation, and those with a root also with the victim as the root."""
    if fault in WIRED and transport in ("shm", "inside"):
        return  # there is nothing to cut, or nothing other than in "both"
    if fault == "no memory" and transport in ("both", "inside"):
        return
    if fault == "no memory" and transport == "shm":
        yield Cell(fault, "barrier", transport)  # there is no group to run more in
        return
    for operation in OPERATIONS:
        if applies(fault, operation):
            for root in (0, VICTIM) if operation in ROOTED else (0,):
                yield Cell(fault, operation, transport, root)


def process_sets(wanted: list[Cell]) -> list[list[Cell]]:
    """Groups cells by what one set of processes can run one after the other: those that leave all processes alive."""
    lasting: dict[tuple[Transport, bool, bool], list[Cell]] = {}
    alone: list[list[Cell]] = []
    for cell in wanted:
        if cell.fault in _SURVIVED or cell.fault == "stopped":
            lasting.setdefault((cell.transport, cell.wired, cell.fault == "loss"), []).append(cell)
        else:
            alone.append([cell])
    return [*lasting.values(), *alone]
