"""What the lint has found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from lowerkit.runtimes.cuda.simulated.text.syntax import Instruction, ModuleText


@dataclass(frozen=True, order=True)
class Finding:
    """One place where an order is missing.

    Attributes:
        line: of the PTX, where something is used.
        since: the line that the use must be ordered behind; 0 for the start of the kernel.
        kernel: its name.
        rule: the file of the rule.
        message: what is missing between the two.
        source: file and line of the source, of the use; empty where the PTX does not say it.
    """

    line: int
    since: int
    kernel: str
    rule: str
    message: str
    source: str

    def __str__(self) -> str:
        place = f"kernel {self.kernel}, PTX line {self.line}"
        if self.source:
            place += f" ({self.source})"
        behind = f" (line {self.since})" if self.since else ""
        return f"{place}: {self.message}{behind}"


def source_of(module: ModuleText, instruction: Instruction) -> str:
    """Returns the place in the source that an instruction comes from; empty if it is not known."""
    place = instruction.place
    if not place.source_line:
        return ""
    return f"{PurePosixPath(module.files.get(place.file, f'file {place.file}')).name}:{place.source_line}"
