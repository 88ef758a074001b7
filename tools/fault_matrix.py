"""Runs all cells of the fault matrix and writes their table: docs/results/fault-matrix.md.

    python tools/fault_matrix.py --write

Faults x operations x transports; tests/support/faults says what each cell demands. All of it takes about 15 minutes.
In slices, each about as long as asked for; the last one, which finds nothing left to do, writes the table:

    python tools/fault_matrix.py --resume outcomes.json --seconds 60 --write
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.faults import cells, driver, namespaces  # noqa: E402


@click.command()
@click.option("--filter", "pattern", default="", help="Run the cells whose name holds this text.")
@click.option("--write", is_flag=True, help="Write docs/results/fault-matrix.md.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep the outcomes in this file, and run no cell that passed before. Delete it when the code changes.",
)
@click.option("--seconds", type=float, default=float("inf"), help="Start nothing more after this many seconds.")
def main(pattern: str, write: bool, resume: Path | None, seconds: float) -> None:
    """Runs the cells, prints each, and exits with 1 if one fails, with 2 if some were not run."""
    if write and pattern and resume is None:
        raise click.UsageError("--write needs all cells: leave --filter out, or take the others from --resume FILE")
    # As an exception they end what runs: processes and folders go with it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    started = time.monotonic()
    unwired = namespaces.missing()
    if unwired:
        print(f"no cells between network namespaces: {unwired}")
    outcomes = _read(resume)
    passed = {name for name, outcome in outcomes.items() if not outcome.problems}
    wanted = [cell for cell in _all() if pattern in cell.name and cell.name not in passed]
    wanted = [cell for cell in wanted if not (unwired and cell.wired)]
    left = len(wanted)
    ran: list[driver.Outcome] = []
    for together in cells.process_sets(wanted):
        if time.monotonic() - started > seconds:
            break
        for outcome in driver.run_cells(together):
            ran.append(outcome)
            outcomes[outcome.cell.name] = outcome
            print(f"{'FAIL' if outcome.problems else 'ok  '} {outcome.seconds:6.2f} s  {outcome.cell.name}", flush=True)
            for problem in outcome.problems:
                print(f"       {problem}")
        if resume is not None:
            resume.write_text(
                json.dumps({name: asdict(one) for name, one in outcomes.items()}) + "\n", encoding="utf-8"
            )
    left -= len(ran)
    if write:
        (ROOT / "docs/results/fault-matrix.md").write_text(page(outcomes), encoding="utf-8")
    failed = sum(bool(outcome.problems) for outcome in ran)
    print(f"{len(ran)} cells, {failed} failed, {left} left, {time.monotonic() - started:.0f} s")
    raise SystemExit(1 if failed else 2 if left else 0)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _all() -> list[cells.Cell]:
    return [cell for fault in cells.FAULTS for transport in cells.TRANSPORTS for cell in cells.cells(fault, transport)]


def _read(path: Path | None) -> dict[str, driver.Outcome]:
    """Returns the outcomes of a file by name, those of cells that there still are."""
    if path is None or not path.exists():
        return {}
    kept: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, driver.Outcome] = {}
    for cell in _all():
        if cell.name in kept:
            fields = kept[cell.name]
            messages = {int(rank): text for rank, text in fields["messages"].items()}
            found[cell.name] = driver.Outcome(cell, fields["problems"], fields["seconds"], messages)
    return found


def page(outcomes: dict[str, driver.Outcome]) -> str:
    """Returns the page: a row for each fault and transport, a column for each operation, seconds in the cells."""
    failed = sum(bool(outcome.problems) for outcome in outcomes.values())
    lines = [
        "# Fault matrix",
        "",
        "Written by `python tools/fault_matrix.py --write`; [faults.md](../distributed/faults.md) says what it means.",
        f"{len(outcomes)} of {len(_all())} cells were run, {failed} failed.",
        "A cell is the seconds from the first operation until the last rank had its error (or its results, where the",
        "operations succeed in spite of the fault): the slower one where the victim was also taken as the root.",
        "A star: a rank that waited for nobody in the operation that the fault struck names a later one of its own.",
        "**FAIL**: a demand is not met. Not run: the run was ended before. A dash: there is no such cell.",
        "",
        "| fault | transport | " + " | ".join(cells.OPERATIONS) + " |",
        "|---|---|" + "---|" * len(cells.OPERATIONS),
    ]
    for fault in cells.FAULTS:
        for transport in cells.TRANSPORTS:
            row = list(cells.cells(fault, transport))
            if not row:
                continue
            texts: list[str] = []
            for operation in cells.OPERATIONS:
                names = [cell.name for cell in row if cell.operation == operation]
                those = [outcomes[name] for name in names if name in outcomes]
                if not names:
                    texts.append("-")
                elif len(those) < len(names):
                    texts.append("not run")
                elif any(one.problems for one in those):
                    texts.append("**FAIL**")
                else:
                    star = "*" if any(one.later for one in those) else ""
                    texts.append(f"{max(one.seconds for one in those):.2f}{star}")
            lines.append(f"| {fault} | {transport} | " + " | ".join(texts) + " |")
    lines += ["", "The first error of a surviving rank, by fault:", ""]
    for fault in cells.FAULTS:
        said = next((one.message for one in outcomes.values() if one.cell.fault == fault and one.message), None)
        if said is not None:
            lines.append(f"* {fault}: `{said}`")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
