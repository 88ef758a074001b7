"""Runs the fault matrix of compiled models and writes its table: docs/results/fault-matrix-models.md.

    python tools/fault_matrix_models.py --write

{SIGKILL, SIGSTOP, slow, another artifact, another shape, another mesh} x {shared memory, TCP} x two meshes: ranks of a
compiled model; tests/support/mesh/faults says what each cell demands. All of it takes about a minute.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.mesh.faults import cells, driver, network  # noqa: E402


@click.command()
@click.option("--filter", "pattern", default="", help="Run the cells whose name holds this text.")
@click.option("--repeat", default=1, show_default=True, help="How often each cell is run.")
@click.option("--write", is_flag=True, help="Write docs/results/fault-matrix-models.md.")
def main(pattern: str, repeat: int, write: bool) -> None:
    """Runs the cells, prints each, and exits with 1 if one fails."""
    wanted = [cell for cell in cells.cells() if pattern in cell.name]
    if write and len(wanted) < len(list(cells.cells())):
        raise click.UsageError("--write needs all cells: leave --filter out")
    outcomes: dict[str, list[driver.Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="lowerkit-mesh-faults-") as folder:
        made = network.compile_artifacts(Path(folder))
        for cell in wanted:
            for _ in range(repeat):
                outcome = driver.run(cell, made)
                outcomes.setdefault(cell.name, []).append(outcome)
                print(f"{'FAIL' if outcome.problems else 'ok  '} {outcome.seconds:6.2f} s  {cell.name}", flush=True)
                for problem in outcome.problems:
                    print(f"       {problem}")
    if write:
        (ROOT / "docs/results/fault-matrix-models.md").write_text(page(outcomes), encoding="utf-8")
    failed = sum(bool(outcome.problems) for found in outcomes.values() for outcome in found)
    print(f"{sum(map(len, outcomes.values()))} cells, {failed} failed")
    raise SystemExit(1 if failed else 0)


def page(outcomes: Mapping[str, Sequence[driver.Outcome]]) -> str:
    """Returns the page: a row for each fault, a column for each transport, seconds in the cells."""
    columns: list[tuple[str, cells.Transport]] = [
        (mesh, transport) for mesh in cells.MESHES for transport in cells.TRANSPORTS
    ]
    lines = [
        "# Fault matrix of compiled models",
        "",
        "Written by `python tools/fault_matrix_models.py --write`; "
        "[faults.md](../distributed/faults.md) says what it means.",
        "A cell is the seconds from the fault until the last rank that is left had its error (or its results, where a",
        "rank was slow): the longest of its runs. **FAIL**: a demand is not met.",
        "",
        "| fault | " + " | ".join(f"{mesh}, {transport}" for mesh, transport in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for fault in cells.FAULTS:
        row = [outcomes[cells.Cell(fault, transport, mesh).name] for mesh, transport in columns]
        texts = [
            "**FAIL**" if any(one.problems for one in found) else f"{max(one.seconds for one in found):.2f}"
            for found in row
        ]
        lines.append(f"| {fault} | " + " | ".join(texts) + " |")
    lines += ["", "What the first rank that is left says:", ""]
    for fault in cells.FAULTS:
        said = next((one.message for one in outcomes[cells.Cell(fault, "shm").name] if one.message), "")
        if said:
            lines += [f"* {fault}", "", "  ```", *(f"  {line}" for line in _without_paths(said).splitlines()), "  ```"]
    return "\n".join(lines) + "\n"


def _without_paths(message: str) -> str:
    """Returns a message without the folders of this machine."""
    words = [word.rpartition("/")[2] if word.startswith("/") else word for word in message.split(" ")]
    return " ".join(words)


if __name__ == "__main__":
    main()
