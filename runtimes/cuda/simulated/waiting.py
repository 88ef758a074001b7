"""Threads that poll for something others do: who must get a turn, and when nobody is left that could do it."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.faults import KernelFault


class Waiting:
    """What the scheduler knows of polls.

    Attributes:
        failed: a poll has failed since the last jump back: who jumps back now tries again, and only progress helps it.
        progress: counts what polls may look for.
        fault: returns what to say when no poll can succeed any more.
    """

    def __init__(self, batch: Batch) -> None:
        self.failed = False
        self.progress = 0
        self.fault: Callable[[], KernelFault] | None = None

    def advance(self) -> None:
        """Says that something has happened which a poll may look for."""
        self.progress += 1

    def fail(self, fault: Callable[[], KernelFault]) -> None:
        """Says that a poll has failed; ``fault`` returns the error if it never succeeds."""
        self.failed = True
        self.fault = fault
