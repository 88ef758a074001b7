"""Runs all cells of the fault matrix and writes their table: docs/fault-matrix.md.

    python tools/fault_matrix.py --write

Faults x operations x transports; tests/support/faults says what each cell demands. Takes some minutes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.faults import cells, driver, namespaces  # noqa: E402


@click.command()
@click.option("--filter", "pattern", default="", help="Run the cells whose name holds this text.")
@click.option("--write", is_flag=True, help="Write docs/fault-matrix.md.")
def main(pattern: str, write: bool) -> None:
    """Runs the cells, prints each, and exits with 1 if one fails."""
    if write and pattern:
        raise click.UsageError("--write needs all cells: leave --filter out")
    started = time.monotonic()
    unwired = namespaces.missing()
    wanted = [
        cell
        for fault in cells.FAULTS
        for transport in cells.TRANSPORTS
        for cell in cells.cells(fault, transport)
        if pattern in cell.name and not (unwired and cell.wired)
    ]
    if unwired:
        print(f"no cells between network namespaces: {unwired}")
    outcomes: dict[str, driver.Outcome] = {}
    for together in cells.process_sets(wanted):
        for outcome in driver.run_cells(together):
            outcomes[outcome.cell.name] = outcome
            print(f"{'FAIL' if outcome.problems else 'ok  '} {outcome.seconds:6.2f} s  {outcome.cell.name}", flush=True)
            for problem in outcome.problems:
                print(f"       {problem}")
        if write:
            (ROOT / "docs/fault-matrix.md").write_text(page(outcomes), encoding="utf-8")
    failed = [name for name, outcome in outcomes.items() if outcome.problems]
    took = time.monotonic() - started
    print(f"{len(outcomes)} cells, {len(failed)} failed, {took:.0f} s")
    if failed:
        raise SystemExit(1)


def page(outcomes: dict[str, driver.Outcome]) -> str:
    """Returns the page: a row for each fault and transport, a column for each operation, seconds in the cells."""
    lines = [
        "# Fault matrix",
        "",
        "Written by `python tools/fault_matrix.py --write`; [faults.md](faults.md) says what it means.",
        "A cell is the seconds from the first operation until the last rank had its error (or its results, where the",
        "operations succeed in spite of the fault): the slower one where the victim was also taken as the root.",
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
                    texts.append(f"{max(one.seconds for one in those):.2f}")
            lines.append(f"| {fault} | {transport} | " + " | ".join(texts) + " |")
    lines += ["", "The first error of a surviving rank, by fault:", ""]
    for fault in cells.FAULTS:
        said = next((one.message for one in outcomes.values() if one.cell.fault == fault and one.message), None)
        if said is not None:
            lines.append(f"* {fault}: `{said}`")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
