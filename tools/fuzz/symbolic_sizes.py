"""Runs ops that were exported with symbolic sizes at many further sizes, and compares with eager in float64.

    python tools/fuzz/symbolic_sizes.py [--seed 0] [--sizes 12] [--only PART] [--list]

Every case is exported with all its dims symbolic (``Dim.AUTO``) and with named dims from 0 on, and run at small sizes,
no elements, primes, powers of two and larger ones. ``--together`` jobs are compiled as one program in a forked child
(:mod:`symbolic.run`); where that fails, in halves. ``--only`` takes parts of names, with commas between them.

Verdicts
    ok            every size was right, or refused where the exported program refuses it too
    refused       a size that the exported program takes is refused at the call: counted, no failure
    declined      the compiler refuses the case with a diagnostic (LK4001, LK4002, LK2001)
    not exported  torch refuses the case
    wrong, crash, internal, hang    failures: another number, a signal, any other error, more than --timeout seconds
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from graph.children import in_child
from symbolic.cases import CASES
from symbolic.run import Finding, Job, outcome_of, settings

FAILURES = ("wrong", "crash", "internal", "hang")
_VERDICTS = {"crashed": "crash", "hung": "hang"}


def judged(jobs: Sequence[Job], count: int, seed: int, timeout: float) -> Iterator[Finding]:
    """Yields a finding for each job: of all together if they compile, else of halves."""
    outcome = in_child(lambda: outcome_of(jobs, count, seed), timeout * (1 + len(jobs) / 8))
    if outcome.kind == "judged":
        yield from (Finding(**entry) for entry in json.loads(outcome.detail))
    elif len(jobs) > 1:
        half = len(jobs) // 2
        yield from judged(jobs[:half], count, seed, timeout)
        yield from judged(jobs[half:], count, seed, timeout)
    else:
        name, setting = jobs[0]
        text = f"{outcome.code} {outcome.detail}".strip()[:400].replace("\n", " ")
        yield Finding(name, setting, _VERDICTS.get(outcome.kind, outcome.kind), notes=[text])


def main() -> int:
    """Prints a line for each job and the counts; returns 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, default=12)
    parser.add_argument("--only", default="")
    parser.add_argument("--setting", default="")
    parser.add_argument("--together", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    jobs = [
        (name, setting)
        for name, case in CASES.items()
        if any(part in name for part in options.only.split(","))
        for setting in settings(case)
        if options.setting in setting
    ]
    if options.list:
        print("\n".join(f"{name} {setting}" for name, setting in jobs))
        return 0
    outcome_of([("roll", "auto")], 1, 0)  # imports and first-time work, once for all children
    counts: Counter[str] = Counter()
    start = time.monotonic()
    for first in range(0, len(jobs), options.together):
        for entry in judged(jobs[first : first + options.together], options.sizes, options.seed, options.timeout):
            counts[entry.verdict if entry.verdict != "ok" or not entry.refused else "refused"] += 1
            notes = entry.notes or entry.refused
            verdict = "refused" if entry.verdict == "ok" and entry.refused else entry.verdict
            print(f"{verdict:12} {entry.case} {entry.setting} {' | '.join(notes[:2])}", flush=True)
    total = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    print(f"{sum(counts.values())} jobs in {time.monotonic() - start:.0f} s: {total}")
    return int(any(counts[verdict] for verdict in FAILURES))


if __name__ == "__main__":
    sys.exit(main())
