"""What a bad input is, and what has to come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Make = Callable[[Path], list[list[str]]]
OUTPUT = "earlier.lk"
"""An artifact that was there before; ``-o`` of every compilation."""


@dataclass(frozen=True)
class BadInput:
    """One bad input.

    Attributes:
        number, name: ``12-duplicate-entries``.
        make: writes the files into a folder and returns the command lines, without ``lowerkit``.
        exit_code: of every command.
        says: one of these codes is in the diagnostic.
        megabytes: address space that a command may take beyond what the imports took.
        seconds: of processor time that a command may take.
        file_bytes: the size beyond which no file can be written (a full disk); None: no limit.
    """

    number: int
    name: str
    make: Make
    exit_code: int = 3
    says: tuple[str, ...] = ("LK1002",)
    megabytes: int = 2048
    seconds: float = 60.0
    file_bytes: int | None = None

    @property
    def id(self) -> str:
        """The name of the test."""
        return f"{self.number:02d}-{self.name}"


def compile_commands(*models: str, inputs: tuple[str, ...] = ()) -> list[list[str]]:
    """Returns a compilation for each model."""
    options = [text for value in inputs for text in ("--input", value)]
    return [["compile", model, *options, "-o", OUTPUT, "--no-cache"] for model in models]
