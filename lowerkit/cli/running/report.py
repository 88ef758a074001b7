"""How a rank that this command started tells the command why it ends: its diagnostic, in a file
without a name that both have open."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import click

from lowerkit.cli.diagnostics import DiagnosedError, diagnostic_of
from lowerkit.errors import LowerkitError


@dataclass(frozen=True)
class Report:
    """Why a rank ended.

    Attributes:
        text: the diagnostic, as it would have been printed.
        code: of the error; empty where it is none of lowerkit's.
        location: the line of the model where it failed, or empty.
        exit_code: of the rank.
        moment: when it failed, on the clock of the machine.
    """

    text: str
    code: str
    location: str
    exit_code: int
    moment: float

    @staticmethod
    def of(error: BaseException) -> Report:
        """Returns why a rank ends that raised ``error`` just now."""
        moment = time.monotonic()
        text, exit_code = diagnostic_of(error)
        code, location = (error.code, error.location or "") if isinstance(error, LowerkitError) else ("", "")
        return Report(text, code, location, exit_code, moment)

    @property
    def testimony(self) -> str:
        """What a rank says that another one failed: its message, and the line of the model."""
        return self.message + (f" (at {self.location})" if self.location else "")

    @property
    def message(self) -> str:
        """The first line, without the code."""
        return self.text.partition("\n")[0].partition(": ")[2]

    def text_of(self, rank: int, name: str = "") -> str:
        """Returns the diagnostic with the rank named in it, as ``name`` or by its number; those of collectives do."""
        head, separator, rest = self.text.partition(": ")
        if re.search(rf"\brank {rank}\b", self.message):
            return self.text
        name = name or f"rank {rank}"
        return f"{head}: {name}: {rest}" if separator else f"{name}: {head}"


@contextmanager
def named(rank: int, name: str = "") -> Generator[None]:
    """Names the rank in the diagnostic of what the block raises, as ``name`` or by its number.

    Raises:
        DiagnosedError: in the place of an error of the rank.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (BrokenPipeError, click.exceptions.Exit)):
            raise
        report = Report.of(error)
        raise DiagnosedError(report.text_of(rank, name), report.exit_code) from error


@contextmanager
def reported(descriptor: int) -> Generator[None]:
    """Writes the diagnostic of what the block raises to a file, and ends the process with its exit code.

    Raises:
        SystemExit: in the place of what the block raised.
    """
    try:
        yield
    except (SystemExit, BrokenPipeError, click.exceptions.Exit):
        raise
    except BaseException as error:
        report = Report.of(error)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)))
        raise SystemExit(report.exit_code) from error


def read_report(descriptor: int) -> Report | None:
    """Returns what a rank that has ended wrote to a file; None where it wrote nothing, or not to the end."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), encoding="utf-8") as file:
        try:
            return Report(**json.loads(file.read()))
        except ValueError:
            return None
