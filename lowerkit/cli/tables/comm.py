"""How `lowerkit comm trace` shows a group: tables, and the same as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.output import print_table

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.tracing.trace import RankRow, Step, Trace


def _worst(one: Trace, top: int) -> list[Step]:
    return sorted(one.steps, key=lambda step: (-step.longest_wait, step.sequence))[:top]


def _milliseconds(nanoseconds: int) -> float:
    return nanoseconds / 1e6


def print_trace(one: Trace, top: int) -> None:
    """Prints a group's ranks, what went wrong, and the ``top`` operations with the longest waits."""
    columns = ["rank", "process", "operations", "waited ms", "caused ms", "last operation"]
    rows: list[list[object]] = []
    for row in one.ranks:
        waited, caused = _milliseconds(row.waited), _milliseconds(row.caused)
        rows.append([row.rank, f"{row.process} on {row.host}", row.operations, waited, caused, _last(row)])
    print_table(f"group {one.group}, {one.size} ranks", columns, rows)
    if one.missing:
        click.echo(f"no record of rank {', '.join(map(str, one.missing))}: its waits are not known")
    if one.dead:
        click.echo(f"ended before the others' records were written: rank {', '.join(map(str, one.dead))}")
    for row in one.ranks:
        if row.aborted is not None:
            click.echo(f"rank {row.rank} aborted: {row.aborted}")
    parted = one.first_mismatch
    if parted is not None:
        click.echo(f"the ranks parted at operation #{parted.sequence}: {'; '.join(parted.mismatch)}")
    behind = next((step for step in one.steps if step.behind), None)
    if behind is not None:
        click.echo(f"operation #{behind.sequence} was never reached by rank {', '.join(map(str, behind.behind))}")
    steps: list[list[object]] = []
    for step in _worst(one, top):
        waits = [
            f"{rank} for {step.culprits[rank]}: {_milliseconds(entry.waited):.3f}"
            for rank, entry in step.entries.items()
            if rank in step.culprits
        ]
        last = "" if step.last is None else f"rank {step.last}, {_milliseconds(step.spread):.3f} ms after the first"
        steps.append([step.sequence, step.text, _milliseconds(step.longest_wait), last, "; ".join(waits)])
    if steps:
        print_table("", ["number", "operation", "longest wait ms", "started last", "waits, ms"], steps)


def _last(row: RankRow) -> str:
    if row.last is None:
        return "nothing"
    number = f" #{row.last.sequence}" if row.last.sequence else f" tag {row.last.tag}"
    state = f"running for {_milliseconds(row.running):.3f} ms" if not row.last.finished else row.last.status
    return f"{row.last.text}{number}: {state}"


def to_json(one: Trace, top: int) -> dict[str, Any]:
    """Returns the same as a document; times in nanoseconds."""
    parted = one.first_mismatch
    return {
        "group": one.group,
        "size": one.size,
        "missing": list(one.missing),
        "dead": list(one.dead),
        "first_mismatch": None if parted is None else {"sequence": parted.sequence, "calls": list(parted.mismatch)},
        "ranks": [
            {
                "rank": row.rank, "host": row.host, "process": row.process, "operations": row.operations,
                "waited_ns": row.waited, "caused_ns": row.caused, "last": _last(row), "aborted": row.aborted,
            }
            for row in one.ranks
        ],
        "steps": [
            {
                "sequence": step.sequence, "operation": step.text, "longest_wait_ns": step.longest_wait,
                "last": step.last, "spread_ns": step.spread, "behind": list(step.behind),
                "waits": [
                    {
                        "rank": rank, "waited_ns": step.entries[rank].waited,
                        "waited_for": step.entries[rank].waited_for, "culprit": culprit,
                    }
                    for rank, culprit in step.culprits.items()
                ],
            }
            for step in _worst(one, top)
        ],
    }  # fmt: skip
