"""How a rank that this command started tells the command why it ends: its diagnostic, in a file of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from lowerkit.cli.diagnostics import diagnostic_of
from lowerkit.errors import LowerkitError


@dataclass(frozen=True)
class Report:
    """Why a rank ended.

    Attributes:
        text: the diagnostic, as it would have been printed.
        code: of the error; empty where it is none of lowerkit's.
        exit_code: of the rank.
        moment: when it failed, on the clock of the machine.
    """

    text: str
    code: str
    exit_code: int
    moment: float

    @property
    def message(self) -> str:
        """The first line, without the code."""
        return self.text.partition("\n")[0].partition(": ")[2]

    def text_of(self, rank: int) -> str:
        """Returns the diagnostic with the rank named in it."""
        head, separator, rest = self.text.partition(": ")
        return f"{head}: rank {rank}: {rest}" if separator else f"rank {rank}: {head}"


@contextmanager
def reported(path: Path) -> Generator[None]:
    """Writes the diagnostic of what the block raises to ``path``, and ends the process with its exit code.

    Raises:
        SystemExit: in the place of what the block raised.
    """
    try:
        yield
    except (SystemExit, BrokenPipeError, click.exceptions.Exit):
        raise
    except BaseException as error:
        moment = time.monotonic()
        text, exit_code = diagnostic_of(error)
        code = error.code if isinstance(error, LowerkitError) else ""
        complete = path.with_suffix(".new")
        complete.write_text(json.dumps(asdict(Report(text, code, exit_code, moment))))
        complete.replace(path)
        raise SystemExit(exit_code) from error


def read_report(path: Path) -> Report | None:
    """Returns what the rank wrote to ``path``; None where it ended without."""
    try:
        return Report(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
