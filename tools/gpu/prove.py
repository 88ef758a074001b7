"""Proves the kernels of the CUDA families on the simulated device: parity, coverage, mutants; prints a table.

    python tools/gpu/prove.py [--family gemm] [--level sm_90] [--every 41] [--json proofs.json] [--workers 2]

For each representative region (``tests/support/cuda/proofs``) at each level: every run of its sweep holds against
float64 with all checks on; instructions that no run executes are listed; of mutants with one instruction changed, those
that no run finds. ``--quick`` takes a few regions and few mutants. Ends with 1 where something does not hold.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lowerkit.errors import LowerkitError
from tests.support.cuda.proofs.cases import LEVELS, all_cases
from tests.support.cuda.proofs.prover import KernelProof, Proof

QUICK = ("elementwise: f32, tanh and a row", "reduce: f32, sum of rows", "gemm: bf16, K of 232 in 3 parts, a row added")
LEAST = 0.95  # of the mutants


class Family(msgspec.Struct):
    """The kernels of a family, all of them together.

    Attributes:
        kernels, runs, instructions, unexecuted, explained: how many.
        killed, equivalent, survived: mutants.
        failures: cases of which a run does not hold, with the reason.
    """

    name: str
    kernels: int = 0
    runs: int = 0
    instructions: int = 0
    unexecuted: int = 0
    explained: int = 0
    killed: int = 0
    equivalent: int = 0
    survived: int = 0
    failures: list[str] = []

    @property
    def coverage(self) -> float:
        """Which part of the instructions ran, those with a reason left out."""
        return 1 - self.unexecuted / max(1, self.instructions)

    @property
    def score(self) -> float:
        """Which part of the mutants that are not equivalent was killed."""
        return self.killed / max(1, self.killed + self.survived)

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong or missing."""
        return not self.failures and not self.unexecuted and self.score >= LEAST

    def row(self) -> str:
        """A line of the table."""
        return (
            f"{self.name:12} {self.kernels:8} {self.runs:6} {self.coverage:9.1%} {self.unexecuted:6} "
            f"{self.explained:10} {self.killed:7} {self.equivalent:11} {self.survived:9} {self.score:7.1%}  "
            f"{'holds' if self.holds else 'does not hold'}"
        )


HEAD = (
    f"{'family':12} {'kernels':>8} {'runs':>6} {'coverage':>9} {'unrun':>6} {'explained':>10} "
    f"{'killed':>7} {'equivalent':>11} {'survived':>9} {'score':>7}"
)


def prove_case(title: str, level: str, every: int) -> list[KernelProof] | str:
    """Proves a case at a level; returns why it does not hold where it does not."""
    try:
        return Proof(all_cases()[title], level).prove(every)
    except (LowerkitError, AssertionError) as error:
        at = f", at {error.op}, {error.location}" if isinstance(error, LowerkitError) else ""
        return f"{title} at {level}: {error}{at}"


def proofs(
    titles: Sequence[str], levels: Sequence[str], every: int, workers: int
) -> Iterator[tuple[str, list[KernelProof] | str]]:
    """Yields title and result of each case at each level, as they come."""
    cases = all_cases()
    asked = [(title, level, every) for title in titles for level in levels if level in cases[title].levels]
    if workers == 1:
        yield from ((each[0], prove_case(*each)) for each in asked)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(prove_case, *each): each[0] for each in asked}
        for done in as_completed(running):
            yield running[done], done.result()


def gather(families: dict[str, Family], title: str, found: list[KernelProof] | str) -> None:
    """Adds what is known of a case to its family."""
    name = title.partition(":")[0]
    family = families.setdefault(name, Family(name))
    if isinstance(found, str):
        family.failures = [*family.failures, found]
        return
    for each in found:
        family.kernels += 1
        family.runs += each.runs
        family.instructions += each.instructions
        family.unexecuted += len(each.unexecuted)
        family.explained += len(each.explained)
        family.killed += each.killed
        family.equivalent += len(each.equivalent)
        family.survived += len(each.survived)


def show(found: list[KernelProof] | str) -> None:
    """Prints a case, what did not run and what survived."""
    if isinstance(found, str):
        print(f"FAILED {found}", flush=True)
        return
    for each in found:
        print(
            f"{each.family}: {each.case}, {each.level}: {each.runs} runs, {each.coverage:.1%} of {each.instructions} "
            f"instructions, {each.killed} killed, {len(each.equivalent)} equivalent, {len(each.survived)} survived, "
            f"{each.seconds:.1f} s",
            flush=True,
        )
        for line in each.unexecuted:
            print(f"  not run: {line}")
        for line in each.survived:
            print(f"  survived: {line}")


def run(
    titles: Sequence[str], levels: Sequence[str], every: int, workers: int, path: Path | None, *, verbose: bool
) -> list[Family]:
    """Proves cases, prints the table, writes JSON."""
    families: dict[str, Family] = {}
    kernels: list[KernelProof] = []
    start = time.perf_counter()
    for title, found in proofs(titles, levels, every, workers):
        gather(families, title, found)
        if verbose or isinstance(found, str):
            show(found)
        if not isinstance(found, str):
            kernels += found
    seconds = time.perf_counter() - start
    print(HEAD)
    for family in families.values():
        print(family.row())
    print(f"each {every}th mutant, {workers} processes, {seconds:.0f} s")
    if path is not None:
        answer = {"every": every, "seconds": seconds, "families": list(families.values()), "kernels": kernels}
        path.write_bytes(msgspec.json.format(msgspec.json.encode(answer), indent=1))
    return list(families.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", help="this one; may be repeated; all without it")
    parser.add_argument("--level", action="append", help="this one; may be repeated; sm_80 and sm_90 without it")
    parser.add_argument("--every", type=int, default=41, help="takes each so-manieth mutant; 0 takes none")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write what was found")
    parser.add_argument("--quick", action="store_true", help="a few regions and few mutants, in this process")
    given = parser.parse_args(arguments)
    titles = [title for title in all_cases() if not given.family or title.partition(":")[0] in given.family]
    if given.quick:
        titles = [title for title in QUICK if title in titles]
    if not titles:
        parser.error(f"no case is of {given.family}")
    every, workers = (3 * given.every, 1) if given.quick else (given.every, given.workers)
    families = run(titles, given.level or LEVELS, every, workers, given.json, verbose=not given.quick)
    return 0 if all(each.holds for each in families) else 1


if __name__ == "__main__":
    sys.exit(main())
