"""Which of the ranks that ended badly is to be named, and what the others say of it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.cli.diagnostics import DiagnosedError
from lowerkit.cli.running.report import Report
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.failures import CollectiveFault

CONSEQUENCES = frozenset({"LK8007", "LK8008", "LK8009", "LK8010", "LK8011", "LK8012"})
"""Codes by which ranks say that another one failed."""


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended.

    Attributes:
        rank: which.
        status: exit code; below 0 the signal that killed it.
        report: its diagnostic, None where it wrote none.
        moment: when it failed, on the clock of the machine.
    """

    rank: int
    status: int
    report: Report | None
    moment: float


def verdict(ends: Sequence[RankEnd], names: Sequence[str] = ()) -> LowerkitError | DiagnosedError | None:
    """Returns the failure of a whole run, or None: all ranks that ended did so well.

    A rank's own failure is named before those of ranks that another one failed; of several the first in time.

    Args:
        ends: of the ranks that ended by themselves.
        names: by rank how messages call it; without, by its number.
    """
    bad = sorted((end for end in ends if end.status), key=lambda end: (_is_consequence(end), end.moment))
    if not bad:
        return None
    first, *others = bad
    name = names[first.rank] if names else f"rank {first.rank}"
    if first.report is None:
        return _lost(first, others, name)
    messages = {end.report.message if end.report else "" for end in bad}
    if len(messages) == 1 and len(bad) == len(ends) > 1:  # no rank is to blame
        return DiagnosedError(first.report.text, first.report.exit_code)
    return DiagnosedError(first.report.text_of(first.rank, name), first.report.exit_code)


def _is_consequence(end: RankEnd) -> bool:
    return end.report is not None and end.report.code in CONSEQUENCES


def _lost(first: RankEnd, others: Sequence[RankEnd], rank: str) -> LowerkitError:
    """Returns the error for a rank that said nothing."""
    name = signal.Signals(-first.status).name if first.status < 0 else ""
    hint = {
        "SIGKILL": "the kernel kills processes when memory runs out: `dmesg` tells; or somebody else did",
        "SIGSEGV": "run only artifacts that you trust; for one that lowerkit compiled this is a bug to report",
    }.get(name, "see its own output above")
    return CollectiveFault(
        "LK8009",
        f"{rank} was killed by {name}" if name else f"{rank} ended with exit code {first.status}",
        details=[f"rank {end.rank}: {end.report.testimony}" for end in others if end.report],
        hint=hint,
    )
