#!/usr/bin/env python
"""Runs the witness of ops over PyTorch's own samples of its operators, and prints what it says as tables.

    python tools/witness_table.py --output witness.jsonl                      what the file has already is left out
    python tools/witness_table.py --output witness.jsonl --filter '^(gather|scatter)'
    python tools/witness_table.py --output witness.jsonl --shard 2/5          every fifth operator, from the second on
    python tools/witness_table.py --output old.jsonl --checkout ../old        another checkout's lowering, this judge
    python tools/witness_table.py --output witness.jsonl --show               run nothing

Each distinct op of the samples' programs is raised alone, with static and with open extents, interpreted and compared
with eager (``tests/support/truth_table/witnessed.py``). Exit code 6 says that an op differs.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lowerkit.conformance.results import CaseResult
from lowerkit.conformance.runner import RunOptions, run_suite
from lowerkit.conformance.suite import Case, SuiteReference
from lowerkit.parity.witness.verdicts import Witnessed
from tests.support.truth_table.witnessed import OperatorVerdict, case_names

_SUITE = "tests.support.truth_table.witnessed"
_ORDER = ("differs", "known", "same", "refused", "left out")
"""The verdict on an operator is the first of these that one of its ops has."""


@click.command(help=__doc__)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="results, one a line; made longer")
@click.option("--filter", "pattern", default="", help="a regular expression that the names of cases must hold")
@click.option("--shard", default="1/1", help="I/N: every N-th operator, from the I-th on")
@click.option("--checkout", type=click.Path(path_type=Path, exists=True, file_okay=False), help="whose lowering runs")
@click.option("--again", is_flag=True, help="run again what differs")
@click.option("--show", is_flag=True, help="run nothing")
@click.option("--workers", default=1)
def main(
    output: Path, pattern: str, shard: str, checkout: Path | None, again: bool, show: bool, workers: int
) -> None:  # fmt: skip
    """Runs what the options ask for and prints the tables."""
    first, count = map(int, shard.split("/"))
    operators = sorted({name.partition("/")[0] for name in case_names()})[first - 1 :: count]
    names = [name for name in case_names() if name.partition("/")[0] in operators and re.search(pattern, name)]
    known = read(output)
    differing = {one.case for one in known if one.verdict.verdict == "differs"}
    done = {one.case for one in known} - (differing if again else set())
    wanted = [] if show else [Case(name) for name in names if name not in done]
    folder = str(checkout.resolve()) if checkout is not None else ""
    with output.open("a") as file, tqdm.tqdm(total=len(wanted), unit="case", disable=None) as bar:

        def keep(result: CaseResult) -> None:
            found = [msgspec.json.decode(note, type=OperatorVerdict) for note in result.notes]
            if result.verdict != "passed":
                reason = f"{result.verdict}: {result.reason}"
                found = [OperatorVerdict(result.name, Witnessed("", "", "left out", reason=reason))]
            file.writelines(msgspec.json.encode(one).decode() + "\n" for one in found)
            file.flush()
            bar.update()

        run_suite(SuiteReference(_SUITE, folder), wanted, RunOptions(workers, time_limit=240.0), on_result=keep)
    chosen = [one for one in read(output) if one.case in names]
    print(page(chosen))
    raise SystemExit(6 if any(one.verdict.verdict == "differs" for one in chosen) else 0)


def read(path: Path) -> list[OperatorVerdict]:
    """Returns the latest verdicts on each case in a result file."""
    by_case: dict[str, list[OperatorVerdict]] = {}
    before = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        one = msgspec.json.decode(line, type=OperatorVerdict)
        if one.case != before:
            by_case[one.case] = []
        by_case[one.case].append(one)
        before = one.case
    return [one for found in by_case.values() for one in found]


def page(found: Sequence[OperatorVerdict]) -> str:
    """Returns the tables: counts, then what differs, what is known and what is refused, each op once."""
    verdicts: dict[str, set[str]] = defaultdict(set)
    ops: dict[str, Witnessed] = {}
    owners: dict[str, str] = {}
    for one in found:
        operator = one.case.partition("/")[0]
        verdicts[operator].add(one.verdict.verdict)
        if one.verdict.name:
            key = f"{one.verdict.name}({one.verdict.operands})"
            ops.setdefault(key, one.verdict)
            owners.setdefault(key, operator)
    operators = Counter(next(word for word in _ORDER if word in words) for words in verdicts.values())
    distinct = Counter(op.verdict for op in ops.values())
    cases = sum(sum(op.cases.values()) for op in ops.values())
    lines = [
        f"{len(verdicts)} operators, {len(ops)} distinct ops, {cases} cases.",
        "",
        "| verdict | operators | ops |",
        "|---|---|---|",
        *(f"| {word} | {operators[word]} | {distinct[word]} |" for word in _ORDER),
    ]
    for word, title in (("differs", "Differs"), ("known", "Known"), ("refused", "Refused"), ("left out", "Left out")):
        chosen = {key: op for key, op in ops.items() if op.verdict == word}
        lines += _table(title, chosen, owners) if word == "differs" else _by_reason(title, chosen)
    return "\n".join(lines)


def _table(title: str, ops: dict[str, Witnessed], owners: dict[str, str]) -> list[str]:
    lines = ["", f"{title}:", "", "| operator | op | case | ours for eager's |", "|---|---|---|---|"]
    for key, op in ops.items():
        for difference in op.differences:
            text = difference.text[:160].replace("|", "/")
            lines.append(f"| {owners[key]} | `{key[:110]}` | {difference.case} | {text} |")
    return lines


def _by_reason(title: str, ops: dict[str, Witnessed]) -> list[str]:
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for op in ops.values():
        names[_short(op.reason)][op.name] = None
    lines = ["", f"{title}:", "", "| why | ops |", "|---|---|"]
    return lines + [f"| {reason} | {', '.join(f'`{name}`' for name in each)} |" for reason, each in names.items()]


def _short(reason: str) -> str:
    """The reason without what it quotes: names and numbers of one case."""
    return re.sub(r"'[^']*'|\d+", "...", reason)[:140].replace("|", "/").replace("\n", " ")


if __name__ == "__main__":
    main()
