"""What a suite of cases is, to those who run it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast


class WrongResultError(Exception):
    """A case ran and gave something else than it must; the message says what, in one line."""


class NotACaseError(Exception):
    """What the suite named turns out to be no case at all, and is in no total; the message says why, in one line."""


@dataclass
class CaseReport:
    """What a case that passed says of itself.

    Attributes:
        notes: what a reader must know to judge the pass.
    """

    notes: list[str] = field(default_factory=list[str])


class Suite(Protocol):
    """A suite, made anew in each worker process by ``make_suite(argument)`` of the module that defines it."""

    def run(self, name: str) -> CaseReport:
        """Runs one case.

        Raises:
            NotACaseError: the verdict is ``skipped``.
            WrongResultError: the verdict is ``wrong``.
            LowerkitError: ``rejected``, or for an internal error ``crashed``.
            Exception: any other is ``crashed``.
        """
        ...


@dataclass(frozen=True)
class SuiteReference:
    """How a worker process finds a suite.

    Attributes:
        module: the module with ``make_suite(argument: str) -> Suite``.
        argument: handed to it.
    """

    module: str
    argument: str = ""

    def make(self) -> Suite:
        """Imports the module and makes the suite."""
        return cast("Suite", importlib.import_module(self.module).make_suite(self.argument))


@dataclass(frozen=True)
class Case:
    """The name of a case and the family that it counts to."""

    name: str
    family: str = ""


def select_cases(cases: Sequence[Case], pattern: str) -> list[Case]:
    """Returns the cases whose name holds ``pattern``, a regular expression; all of them for an empty one.

    Raises:
        UsageError: LK1009, no expression.
    """
    import re

    from lowerkit.errors import UsageError

    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError("LK1009", f"--filter {pattern!r} is no regular expression: {error}") from error
    return [case for case in cases if expression.search(case.name)]
