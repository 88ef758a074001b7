"""Near misses of what passes recognise: recognised rightly or not at all.

    python tools/fuzz/near_misses.py --count 5000 --seed 1 --resume near-misses.jsonl

Each near miss starts from a recognised pattern (attention, norms, GELU, rope, linear, batch norm and padding that fold,
views, quantization) and changes one to three operands, constants, axes, types, masks, uses or writes. Twelve make one
program: what a program holds, and how it is captured (torch.export, with sizes that are symbolic, TorchScript, ONNX),
is decided by seed and number; one in six is compiled once more without the passes that recognise. One process judges,
so that a crash or a hang is an outcome; it is begun anew now and then. A failure is made smaller and printed as a test.
``--only-number`` repeats one program. Exit code 1 where anything failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

FAILURES = ("wrong", "internal", "crashed", "hung")
TOGETHER = 12
PROGRAMS_OF_A_WORKER = 60

Row = list[Any]
"""The near miss's seed, its pattern, the verdict, a detail, and for a failure its text."""


def main() -> int:
    """Runs, or goes on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="near misses that eager can compute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names of patterns, by comma")
    parser.add_argument("--only-number", type=int, help="the number of one program")
    parser.add_argument("--resume", type=Path, help="where outcomes are kept, a program a line, and taken up from")
    parser.add_argument("--seconds", type=float, default=600, help="for one program, then it hangs")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return work(options) if options.worker else run(options)


def seeds_of(options: argparse.Namespace, program: int) -> list[int]:
    """Returns the seeds of the near misses of one program."""
    first = options.seed * 10_000_000 + program * TOGETHER
    return list(range(first, first + TOGETHER))


def work(options: argparse.Namespace) -> int:
    """Judges what comes by standard input, ``[program, seeds]`` a line; one line of rows for each."""
    from near_miss.judge import judge
    from near_miss.pattern import make
    from near_miss.program import Way

    only = [name for name in options.only.split(",") if name]
    for line in sys.stdin:
        program, seeds = json.loads(line)
        way = Way.of_program(program)
        rows: list[Row] = []
        for outcome in judge([make(seed, only) for seed in seeds], way):
            one = outcome.near_miss
            rows.append([one.seed, one.pattern, outcome.verdict, outcome.detail])
            if outcome.verdict in FAILURES:
                rows[-1].append(as_test(smaller(one, way), way))
        print(json.dumps(rows), flush=True)
    return 0


def smaller(near_miss: Any, way: Any) -> Any:
    """Takes changes back as long as the rest still fails."""
    from near_miss.judge import judge

    for name in near_miss.changed():
        candidate = near_miss.with_recognised(name)
        if judge([candidate], way)[0].verdict in FAILURES:
            near_miss = candidate
    return near_miss


def as_test(near_miss: Any, way: Any) -> str:
    """Returns a failing function as text."""
    inputs = "\n".join(f"    #   {name}: {spec}" for name, spec in near_miss.inputs.items())
    fixed = ", ".join(near_miss.constants) or "none"
    arguments = ", ".join(near_miss.inputs)
    return (
        f"def near_miss_{near_miss.seed}({arguments}):{near_miss.body()}\n"
        f"    # {near_miss.pattern}; {way}; constants: {fixed}\n{inputs}\n"
    )


def run(options: argparse.Namespace) -> int:
    """Drives the worker."""
    kept: dict[int, list[Row]] = {}
    resume: Path | None = options.resume
    if resume is not None and resume.is_file():
        lines = resume.read_text().splitlines()
        kept = {program: rows for seed, program, rows in map(json.loads, lines) if seed == options.seed}
    started, worker, program = time.monotonic(), Worker(options), 0
    try:
        while judged(kept) < options.count:
            program = program if options.only_number is None else options.only_number
            if program not in kept:
                kept[program] = worker.judge(program, seeds_of(options, program))
                show(kept[program], everything=options.only_number is not None)
                if resume is not None:
                    with resume.open("a") as file:
                        file.write(json.dumps([options.seed, program, kept[program]]) + "\n")
            if options.only_number is not None:
                break
            program += 1
    finally:
        worker.end()
    counts = Counter(row[2] for rows in kept.values() for row in rows)
    failed = ", ".join(f"{counts[name]} {name}" for name in FAILURES)
    rest = ", ".join(f"{count} {name}" for name, count in counts.most_common() if name not in FAILURES)
    print(f"{judged(kept)} near misses: {failed}; {rest}; {time.monotonic() - started:.0f} s")
    return int(any(counts[name] for name in FAILURES))


def show(rows: list[Row], *, everything: bool) -> None:
    """Prints the failures, or every row."""
    for row in rows:
        if everything or row[2] in FAILURES:
            print(f"{row[2]} ({row[1]}, seed {row[0]}): {row[3]}\n{row[4] if len(row) > 4 else ''}", flush=True)


def judged(kept: dict[int, list[Row]]) -> int:
    """Returns how many have a verdict: those that eager cannot compute, or torch not capture, do not count."""
    return sum(row[2] not in ("invalid", "not captured") for rows in kept.values() for row in rows)


class Worker:
    """A child process that judges; a new one where the last crashed or hung, or has done its share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.process: subprocess.Popen[str] | None = None
        self.lines: SimpleQueue[str] = SimpleQueue()
        self.done = 0

    def judge(self, program: int, seeds: list[int]) -> list[Row]:
        """Returns the rows of one program; where the process dies, each near miss is judged alone."""
        line = self._answer(program, seeds)
        if line:
            return json.loads(line)
        verdict = "hung" if line is None else "crashed"
        self.end()
        if len(seeds) == 1:
            return [[seeds[0], "", verdict, f"alone, in the way of program {program}"]]
        rows = [row for seed in seeds for row in self.judge(program, [seed])]
        if not any(row[2] in FAILURES for row in rows):
            rows.append([seeds[0], "", verdict, f"only together, program {program}"])
        return rows

    def _answer(self, program: int, seeds: list[int]) -> str | None:
        """Returns a line; empty where the process died, None where it hangs."""
        if self.done == PROGRAMS_OF_A_WORKER:
            self.end()
        if self.process is None:
            self.process, self.done = self._started(), 0
        self.done += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([program, seeds]) + "\n")
        self.process.stdin.flush()
        try:
            return self.lines.get(timeout=self.options.seconds)
        except Empty:
            return None

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--worker", "--only", self.options.only]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.lines = SimpleQueue()
        Thread(target=self._read, args=(process, self.lines), daemon=True).start()
        return process

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: SimpleQueue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("[["):
                lines.put(line)
        lines.put("")

    def end(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


if __name__ == "__main__":
    sys.exit(main())
