#!/usr/bin/env python
"""Calls operators, exported with every extent open, at other extents than those of the export, beside eager PyTorch.

    python tools/fuzz/resized.py --output resized.jsonl                    what the file has already is left out
    python tools/fuzz/resized.py --output resized.jsonl --filter '^roll'   some operators
    python tools/fuzz/resized.py --output resized.jsonl --show             count what the file has
    python tools/fuzz/resized.py --output refused.jsonl --refused --samples 1   which operators are refused with open
                                                                           extents alone: minutes, nothing is called

What is done: ``tests/support/truth_table/resized.py``. Exit code 6 says that a result is wrong, crashed, hung or an
internal error.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from lowerkit.capture.torch_export.eager import quiet
from lowerkit.conformance.results import CaseResult
from lowerkit.conformance.runner import RunOptions, run_suite
from lowerkit.conformance.suite import Case, SuiteReference
from tests.support.truth_table.operators import drawn, operator_rows
from tests.support.truth_table.suite import FAILED, CellResult

_SUITE = "tests.support.truth_table.resized"
_UNDEFINED = re.compile(r"^(_segment_reduce|bucketize|searchsorted|argsort)")
"""With ``unsafe=True`` eager reads beyond what it is given; nothing says what is found among values without order, or
how equal ones are sorted."""


def main() -> int:
    """Runs what the arguments ask for and prints a summary."""
    parser = argparse.ArgumentParser(description="operators at other extents than those of the export")
    parser.add_argument("--output", type=Path, required=True, help="results, one a line; made longer as they come")
    parser.add_argument("--filter", default="", help="a regular expression that the names of operators must hold")
    parser.add_argument("--dtypes", default="f32", help="element types, with commas")
    parser.add_argument("--samples", type=int, default=4, help="at most so many samples of an operator and type")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--refused", action="store_true", help="ask only what is refused, and not with known extents")
    arguments = parser.parse_args()
    known = read(arguments.output)
    done = {result.name.partition("/")[0] for result in known}
    wanted = [] if arguments.show else select(arguments.filter, arguments.dtypes.split(","), arguments.samples)
    cases = [Case(name) for name in wanted if name not in done]
    print(f"{len(cases)} samples to run", file=sys.stderr)
    with arguments.output.open("a") as file:

        def keep(result: CaseResult) -> None:
            found = [msgspec.json.decode(note, type=CellResult) for note in result.notes]
            if result.verdict != "passed":
                found.append(CellResult(result.name, result.verdict, result.reason))
            known.extend(found)
            file.writelines(msgspec.json.encode(one).decode() + "\n" for one in found)
            file.flush()

        suite = SuiteReference(_SUITE, "refusals" if arguments.refused else "")
        run_suite(suite, cases, RunOptions(workers=arguments.workers, time_limit=180.0), on_result=keep)
    counts = collections.Counter(result.verdict for result in known)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    if arguments.refused:
        refused = sorted({result.name.partition("#")[0] for result in known if result.verdict == "refused"})
        print(f"{len(refused)} operators are refused with open extents alone: {', '.join(refused)}")
    failed = [result for result in known if result.verdict in FAILED]
    for result in failed:
        print(f"{result.verdict} {result.name}: {result.reason}")
    return 6 if failed else 0


def select(pattern: str, dtypes: list[str], most: int) -> list[str]:
    """Returns the names of samples, spread over those that an operator has."""
    found: list[str] = []
    for operator in operator_rows():
        if not re.search(pattern, operator) or _UNDEFINED.search(operator):
            continue
        for dtype in dtypes:
            try:
                with quiet():
                    numbers = [sample.number for sample in drawn(operator, dtype)]
            except Exception:  # the makers of samples raise what they like
                continue
            found += [f"{operator}#{number}[{dtype}]" for number in numbers[:: max(1, len(numbers) // most)][:most]]
    return found


def read(path: Path) -> list[CellResult]:
    """Returns the results of a file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=CellResult) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
