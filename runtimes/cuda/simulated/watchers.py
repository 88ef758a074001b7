"""Who is told of what a batch does: of its accesses and what orders them, and of the instructions that ran.

``races`` and ``coverage`` are those who listen. An *instruction* is what ``decoder`` reads one with.
"""

from __future__ import annotations

from typing import Any, Protocol

from lowerkit.runtimes.cuda.simulated.byte_store import ByteStore
from lowerkit.runtimes.cuda.simulated.races.keys import WEAK, Order
from lowerkit.runtimes.cuda.simulated.scalar_types import Array


class AccessWatcher(Protocol):
    """Is told of every access of a batch; see :class:`~lowerkit.runtimes.cuda.simulated.races.detector.Races`."""

    def gather(self, active: Array | None) -> None:
        """The lanes of warps run an instruction together."""
        ...

    def meet(self, active: Array | None) -> None:
        """Threads meet at a barrier, in each block by itself; None for all."""
        ...

    def fence(self) -> None:
        """The active threads run a fence."""
        ...

    def end_phase(self, store: ByteStore, offsets: Array, width: int) -> None:
        """Phases of mbarriers of ``width`` bytes at offsets end: who sees that knows who has arrived, and no more."""
        ...

    def watch(self, store: ByteStore, name: str, granule: int) -> None:
        """A batch has other memory, whose blocks do not share it; accesses have at least ``granule`` bytes."""
        ...

    def read(
        self, store: ByteStore, offsets: Array, width: int, threads: Array | None, instruction: Any, order: Order = WEAK
    ) -> None:
        """Threads read ``width`` bytes at each offset."""
        ...

    def write(
        self,
        store: ByteStore,
        offsets: Array,
        width: int,
        threads: Array,
        instruction: Any,
        order: Order = WEAK,
        values: Array | None = None,
    ) -> None:
        """Threads are about to write ``width`` bytes at each offset."""
        ...

    def change(
        self,
        store: ByteStore,
        offsets: Array,
        width: int,
        threads: Array,
        instruction: Any,
        order: Order,
        wrote: Array | None = None,
    ) -> None:
        """Threads change ``width`` bytes at each offset, atomically, one after another."""
        ...


class InstructionWatcher(Protocol):
    """Is told of every instruction; see :class:`~lowerkit.runtimes.cuda.simulated.coverage.Coverage`.

    ``guarded`` takes the instructions behind predicates that ran.
    """

    guarded: set[Any]

    def enter(self, block: Any) -> None:
        """Threads run a basic block."""
        ...

    def end(self, block: Any, batch: Any, mask: Array | None) -> None:
        """A basic block ends; ``mask`` has its threads, None for all."""
        ...
