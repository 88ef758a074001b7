#!/usr/bin/env python
"""Runs the truth table: every op that capture knows, by element types, special values and shapes, beside eager PyTorch.

    python tools/truth_table.py --output table.jsonl            the short table; what the file has already is left out
    python tools/truth_table.py --output table.jsonl --full     every pair of element types
    python tools/truth_table.py --output table.jsonl --part operators    reductions, products, moves and the rest alone
    python tools/truth_table.py --output table.jsonl --again    what was wrong, crashed or hung, once more
    python tools/truth_table.py --output table.jsonl --show     the results alone, docs/results/truth-table.md

Exit code 6 says that a cell is wrong, crashed, hung or an internal error.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lowerkit.conformance.results import CaseResult
from lowerkit.conformance.runner import RunOptions, run_suite
from lowerkit.conformance.suite import Case, SuiteReference
from lowerkit.parity.judge.eager_errors import known_reason
from tests.support.truth_table.cells import cells, is_core
from tests.support.truth_table.operator_cells import operator_cells
from tests.support.truth_table.suite import FAILED, CellResult
from tests.support.truth_table.values import DTYPES

SUITE = SuiteReference("tests.support.truth_table.suite")
CELLS_TO_A_PROGRAM = 48


def main() -> int:
    """Runs what the arguments ask for and prints a summary."""
    parser = argparse.ArgumentParser(description="the truth table")
    parser.add_argument("--output", type=Path, required=True, help="results, one a line; made longer as they come")
    parser.add_argument("--filter", default="", help="a regular expression that the names of cells must hold")
    parser.add_argument("--full", action="store_true", help="every pair of element types")
    parser.add_argument(
        "--part", choices=("all", "grid", "operators"), default="all", help="single values, or the rest"
    )
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="element types of the operators, with commas")
    parser.add_argument("--again", action="store_true", help="run again what failed")
    parser.add_argument("--show", action="store_true", help="run nothing; print the page of the results")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    known = read(arguments.output)
    dtypes = tuple(arguments.dtypes.split(","))
    every = select(arguments.filter, arguments.part, dtypes, full=arguments.full)
    wanted = every
    if arguments.show:
        wanted = []
    elif arguments.again:
        wanted = [name for name in wanted if known.get(name, CellResult("", "passed")).verdict in FAILED]
    else:
        wanted = [name for name in wanted if name not in known]
    print(f"{len(wanted)} cells to run", file=sys.stderr)
    with arguments.output.open("a") as file:

        def keep(result: CellResult) -> None:
            known[result.name] = result
            file.write(msgspec.json.encode(result).decode() + "\n")
            file.flush()

        run(wanted, keep, arguments.workers)
    chosen = [known[name] for name in every if name in known]
    print(page(chosen, len(every)))
    if arguments.part != "grid":
        print(page_without(operator_cells(dtypes)[1], arguments.filter))
    return 6 if any(result.verdict in FAILED and not is_known(result) for result in chosen) else 0


def select(pattern: str, part: str, dtypes: tuple[str, ...], *, full: bool) -> list[str]:
    """Returns the names of the cells of the table that hold ``pattern``."""
    expression = re.compile(pattern)
    names = [] if part == "operators" else [name for name, cell in cells().items() if full or is_core(cell)]
    names += [] if part == "grid" else [cell.name for cell in operator_cells(dtypes)[0]]
    return [name for name in names if expression.search(name)]


def read(path: Path) -> dict[str, CellResult]:
    """Returns the latest result of each cell in a result file."""
    if not path.exists():
        return {}
    results = [msgspec.json.decode(line, type=CellResult) for line in path.read_text().splitlines()]
    return {result.name: result for result in results}


def run(names: list[str], keep: Callable[[CellResult], None], workers: int) -> None:
    """Runs cells; parts of what brings a process down are run again, until single cells are charged."""
    groups = [names[start : start + CELLS_TO_A_PROGRAM] for start in range(0, len(names), CELLS_TO_A_PROGRAM)]
    options = RunOptions(workers=workers, time_limit=180.0)
    while groups:
        cases = [Case(json.dumps(group)) for group in groups]
        results = run_suite(SUITE, cases, options, on_result=lambda result: keep_notes(result, keep))
        groups = [part for result in results if result.verdict != "passed" for part in parts(result, keep)]


def keep_notes(result: CaseResult, keep: Callable[[CellResult], None]) -> None:
    """Keeps what a program says of its cells."""
    for note in result.notes:
        keep(msgspec.json.decode(note, type=CellResult))


def parts(result: CaseResult, keep: Callable[[CellResult], None]) -> list[list[str]]:
    """Returns parts of a program that did not end; one of a single cell is charged to it."""
    group: list[str] = json.loads(result.name)
    if len(group) == 1:
        keep(CellResult(group[0], result.verdict, result.reason))
        return []
    size = max(1, len(group) // 4)
    return [group[start : start + size] for start in range(0, len(group), size)]


def page(results: list[CellResult], count: int) -> str:
    """Returns the tables of docs/results/truth-table.md, of a table of ``count`` cells."""
    counts = collections.Counter("known" if is_known(result) else result.verdict for result in results)
    lines = [
        "| verdict | cells |",
        "|---|---|",
        *(f"| {verdict} | {found} |" for verdict, found in counts.most_common()),
        f"| not run | {count - len(results)} |",
    ]
    for title, chosen in (
        ("What fails, by op", [result for result in results if result.verdict in FAILED and not is_known(result)]),
        ("Known differences", [result for result in results if is_known(result)]),
        ("Where ours is exact and eager is not", [result for result in results if result.verdict == "better"]),
        ("Refused", [result for result in results if result.verdict == "refused"]),
    ):
        lines += ["", f"{title}:", "", "| op | cells | for example |", "|---|---|---|"]
        by_op: dict[str, list[CellResult]] = collections.defaultdict(list)
        for result in chosen:
            by_op[re.split(r"[(#]", result.name, maxsplit=1)[0]].append(result)
        for name, found in sorted(by_op.items()):
            example = f"`{found[0].name}`: {found[0].reason[:110]}".replace("|", "/")
            lines.append(f"| {name} | {len(found)} | {example} |")
    return "\n".join(lines)


def page_without(without: dict[str, str], pattern: str) -> str:
    """Returns the table of the operators, or their element types, that have no cell, by reason."""
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for name, reason in without.items():
        if re.search(pattern, name):
            by_reason[reason].append(name)
    lines = [f"| {reason} | {', '.join(f'`{name}`' for name in names)} |" for reason, names in by_reason.items()]
    return "\n".join(["", "Operators without a cell:", "", "| why | operators |", "|---|---|", *lines])


def is_known(result: CellResult) -> bool:
    """Whether a cell differs for a reason that is written down."""
    return result.verdict in FAILED and known_reason(result.name) is not None


if __name__ == "__main__":
    sys.exit(main())
