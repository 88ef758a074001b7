#!/usr/bin/env python
"""Says which torch ops reach the last pass of raising, over PyTorch's own samples of its operators.

    python tools/closed_set.py --output reach.jsonl                        what the file has already is left out
    python tools/closed_set.py --output reach.jsonl --filter '^(gather|scatter)'
    python tools/closed_set.py --output reach.jsonl --show                 the table alone

The table has a line for each op: its name, in how many programs it remains, and an example. What is done:
``tests/support/truth_table/reach.py``.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lowerkit.conformance.results import CaseResult
from lowerkit.conformance.runner import RunOptions, run_suite
from lowerkit.conformance.suite import Case, SuiteReference
from tests.support.truth_table.reach import Reached, case_names

SUITE = SuiteReference("tests.support.truth_table.reach")


def main() -> int:
    """Runs what the arguments ask for and prints the table."""
    parser = argparse.ArgumentParser(description="torch ops that no rule of raising takes")
    parser.add_argument("--output", type=Path, required=True, help="results, one a line; made longer as they come")
    parser.add_argument("--filter", default="", help="a regular expression that the names of cases must hold")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    known = read(arguments.output)
    done = {result.case.partition(" ")[0] for result in known}
    names = [name for name in case_names() if re.search(arguments.filter, name)]
    wanted = [] if arguments.show else [Case(name) for name in names if name not in done]
    print(f"{len(wanted)} cases to run", file=sys.stderr)
    with arguments.output.open("a") as file:

        def keep(result: CaseResult) -> None:
            found = [msgspec.json.decode(note, type=Reached) for note in result.notes]
            if result.verdict != "passed" or not found:
                found.append(Reached(result.name, {}, f"{result.verdict} {result.reason}".strip()))
            known.extend(found)
            file.writelines(msgspec.json.encode(one).decode() + "\n" for one in found)
            file.flush()

        run_suite(SUITE, wanted, RunOptions(workers=arguments.workers, time_limit=120.0), on_result=keep)
    chosen = [result for result in known if re.search(arguments.filter, result.case)]
    print(page(chosen))
    return 0


def read(path: Path) -> list[Reached]:
    """Returns the results of a file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Reached) for line in path.read_text().splitlines()]


def page(results: list[Reached]) -> str:
    """Returns a line for each op that remains, those that remain most often first; refusals follow."""
    programs: dict[str, list[Reached]] = {}
    for result in results:
        for name in result.ops:
            programs.setdefault(name, []).append(result)
    lines = [f"{len(programs)} ops remain in {sum(bool(result.ops) for result in results)} of {len(results)} programs"]
    for name, found in sorted(programs.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"{name}  {len(found)}  {found[0].case}  {found[0].ops[name][0]}")
    lines += ["", "refused:"]
    lines += [f"{result.case}: {result.refused}" for result in results if result.refused]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
