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

    A rank's own failure is named before those of ranks that another one failed; of several the first in time, with the
    other ranks of its code: what ranks refuse by themselves is told from the lowest on, whoever was quicker.

    Args:
        ends: of the ranks that ended by themselves.
        names: by rank how messages call it; without, by its number.
    """
    bad = sorted((end for end in ends if end.status), key=lambda end: (_is_consequence(end), end.moment))
    if not bad:
        return None
    first, *others = bad
    called = names or [f"rank {rank}" for rank in range(max(end.rank for end in bad) + 1)]
    if first.report is None:
        return _lost(first, others, called[first.rank])
    messages = {end.report.message if end.report else "" for end in bad}
    if len(messages) == 1 and len(bad) == len(ends) > 1:  # no rank is to blame
        return DiagnosedError(first.report.text, first.report.exit_code)
    alike = {end.rank: end.report for end in bad if end.report and end.report.code == first.report.code}
    lowest, *rest = [first.rank] if _is_consequence(first) else sorted(alike)
    details = [f"{called[rank]}: {alike[rank].message}" for rank in rest]
    text = alike[lowest].text_of(lowest, called[lowest])
    return DiagnosedError(_with_details(text, details), alike[lowest].exit_code)


def _with_details(text: str, details: Sequence[str]) -> str:
    """Returns a diagnostic with details more, before its hint."""
    lines = text.split("\n")
    end = len(lines) - lines[-1].startswith("  hint: ")
    return "\n".join([*lines[:end], *(f"  - {detail}" for detail in details), *lines[end:]])


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
