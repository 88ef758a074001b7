"""Which instructions of a kernel never ran: what a set of launches has not tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.control_flow import BasicBlock, Jump, Leave
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.scalar_types import Array


@dataclass(frozen=True)
class Unexecuted:
    """An instruction that no thread ran.

    Attributes:
        line: of the PTX text.
        instruction: kernel, line and text, as messages say it.
        source: the file and line of the source, None where they are not known.
    """

    line: int
    instruction: str
    source: str | None

    def __str__(self) -> str:
        return self.instruction if self.source is None else f"{self.instruction} ({self.source})"


class Coverage:
    """What the launches of one kernel ran; an instruction behind a predicate ran where the predicate held for a thread.

    ``guarded`` has the instructions behind predicates that ran.
    """

    def __init__(self) -> None:
        self.guarded: set[Any] = set()
        self._blocks: set[int] = set()

    def enter(self, block: BasicBlock) -> None:
        """Takes note that threads run a basic block."""
        self._blocks.add(block.start)

    def end(self, block: BasicBlock, batch: Batch, mask: Array | None) -> None:
        """Takes note of how it ends; ``mask`` has its threads."""
        ending = block.ending
        if isinstance(ending, Jump | Leave) and ending.guard is not None and block.last not in self.guarded:
            value = ending.guard.value(batch)
            if (value if mask is None else value & mask).any():
                self.guarded.add(block.last)

    def unexecuted(
        self, blocks: Mapping[int, BasicBlock], readers: Sequence[InstructionReader]
    ) -> Sequence[Unexecuted]:
        """Returns the instructions of a kernel that did not run, in the order of the text."""
        ran = {number for start in self._blocks for number in range(start, blocks[start].end)}
        found: list[Unexecuted] = []
        for number, read in enumerate(readers):
            if number not in ran or (read.instruction.guard is not None and read not in self.guarded):
                op, source = read.origin(read.instruction)
                found.append(Unexecuted(read.instruction.place.line, op, source))
        return found
