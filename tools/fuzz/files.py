"""Fuzzes what reads files and bytes of strangers: artifacts, their manifests, archives of torch, ONNX models;
handshakes of ranks, their flight records, tuning tables.

    python tools/fuzz/files.py artifact --count 1000000 --workers 2 --state fuzz.json

A case is (target, seed, number): nothing else decides it, so any is repeated with ``--only NUMBER``. Cases run in
forked processes with a limit of memory; a case that ends its process, takes too long, or raises anything but a
LowerkitError is a failure. ``--state`` keeps how far the run came; the next call with it goes on from there.

Steps of a worker: note the number in shared memory, make the case, write it to a file, hand it to the target.
"""

from __future__ import annotations

import collections
import contextlib
import json
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from lowerkit.errors import LowerkitError
from untrusted.targets import TARGETS, prepare

_MEMORY = 4 << 30
_SECONDS = 30.0
_SHOWN = 20


@dataclass
class State:
    """How far a run came: what is left, what was seen."""

    target: str
    seed: int
    done: int = 0
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class Worker:
    """A forked process that runs the cases ``begin``, ``begin + step``, ... below ``end``."""

    def __init__(self, name: str, corpus: list[bytes], seed: int, cases: range, folder: Path) -> None:
        self.cases = cases
        self.position = mmap.mmap(-1, 16)  # the index of the case, and when it began
        self.log = folder / f"worker-{cases.start}.jsonl"
        self._report(0)
        self.process = os.fork()
        if self.process == 0:
            self._run(name, corpus, seed, folder / f"case-{cases.start}{TARGETS[name].suffix}")

    def _report(self, index: int) -> None:
        self.position[:] = struct.pack("<qd", index, time.monotonic())

    def current(self) -> tuple[int, float]:
        """Returns the index into ``cases`` of the case that runs, and for how many seconds it has."""
        index, began = struct.unpack("<qd", self.position[:])
        return index, time.monotonic() - began

    def _run(self, name: str, corpus: list[bytes], seed: int, path: Path) -> None:
        """Runs all cases; does not return, whatever happens: the caller's code is the other process's."""
        try:
            self._take_all(name, corpus, seed, path)
        except BaseException:
            os._exit(3)
        os._exit(0)

    def _take_all(self, name: str, corpus: list[bytes], seed: int, path: Path) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        outcomes: collections.Counter[str] = collections.Counter()
        with self.log.open("w") as log:
            for index, number in enumerate(self.cases):
                self._report(index)
                outcome, failure = take_case(name, corpus, seed, number, path)
                outcomes[outcome] += 1
                if failure:
                    log.write(json.dumps({"number": number, "failure": failure}) + "\n")
                if index % 256 == 255:
                    log.write(json.dumps({"outcomes": outcomes}) + "\n")
                    outcomes.clear()
                log.flush()
            log.write(json.dumps({"outcomes": outcomes}) + "\n")
        path.unlink(missing_ok=True)


def make_case(name: str, corpus: list[bytes], seed: int, number: int) -> bytes:
    """Returns the bytes of a case."""
    return TARGETS[name].mutated(np.random.default_rng([seed, number]), corpus)


def take_case(name: str, corpus: list[bytes], seed: int, number: int, path: Path) -> tuple[str, str]:
    """Runs one case; returns a word for the statistics, and what went wrong."""
    path.write_bytes(make_case(name, corpus, seed, number))
    try:
        return TARGETS[name].take(path), ""
    except LowerkitError as error:
        return error.code, ""
    except BaseException as error:
        return "failure", "".join(traceback.format_exception(error))[-1500:]


def run(state: State, corpus: list[bytes], count: int, workers: int, folder: Path) -> None:
    """Runs ``count`` cases from ``state.done`` on and adds what they gave to ``state``."""
    first, end = state.done, state.done + count
    active = [
        Worker(state.target, corpus, state.seed, range(first + offset, end, workers), folder)
        for offset in range(workers)
        if first + offset < end
    ]
    while active:
        time.sleep(0.05)
        for worker in list(active):
            done, status = os.waitpid(worker.process, os.WNOHANG)
            index, seconds = worker.current()
            if not done and seconds > _SECONDS:
                os.kill(worker.process, signal.SIGKILL)
                os.waitpid(worker.process, 0)
                _ended(state, worker, index, f"takes more than {_SECONDS:.0f} seconds")
            elif done and status:
                code = os.waitstatus_to_exitcode(status)
                cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                _ended(state, worker, index, f"ends its process: {cause}")
            elif not done:
                continue
            active.remove(worker)
            _collect(state, worker)
            left = worker.cases[index + 1 :]
            if (status or not done) and left:
                active.append(Worker(state.target, corpus, state.seed, left, folder))
    state.done = end


def _ended(state: State, worker: Worker, index: int, failure: str) -> None:
    state.failures.append({"number": worker.cases[index], "failure": failure})
    state.outcomes["failure"] = state.outcomes.get("failure", 0) + 1


def _collect(state: State, worker: Worker) -> None:
    with contextlib.suppress(FileNotFoundError):
        for line in worker.log.read_text().splitlines():
            entry = json.loads(line)
            if "failure" in entry:
                state.failures.append(entry)
            for outcome, times in entry.get("outcomes", {}).items():
                state.outcomes[outcome] = state.outcomes.get(outcome, 0) + times
        worker.log.unlink()


@click.command()
@click.argument("target", type=click.Choice(sorted(TARGETS)))
@click.option("--count", default=10_000, show_default=True, help="Cases to run now.")
@click.option("--seed", default=0, show_default=True)
@click.option("--workers", default=2, show_default=True)
@click.option("--state", "state_file", type=click.Path(path_type=Path), help="Where to go on from, and to note it.")
@click.option("--only", type=int, help="Run this case alone, in this process, and keep its file.")
def main(target: str, count: int, seed: int, workers: int, state_file: Path | None, only: int | None) -> None:
    """Runs COUNT mutated files through TARGET; exit code 1 when one of them is more than refused."""
    if only is not None:
        path = Path(f"fuzz-{target}-{seed}-{only}{TARGETS[target].suffix}")
        outcome, failure = take_case(target, prepare(target), seed, only, path)
        click.echo(f"{path}: {outcome}\n{failure}")
        sys.exit(bool(failure))
    state = State(target, seed)
    if state_file is not None and state_file.exists():
        state = State(**json.loads(state_file.read_text()))
        if (state.target, state.seed) != (target, seed):
            raise click.UsageError(f"{state_file} is of target {state.target} and seed {state.seed}")
    corpus = prepare(target)
    started, before = time.monotonic(), state.done
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="lowerkit-fuzz-", dir=memory if memory.is_dir() else None) as folder:
        while state.done < before + count:
            run(state, corpus, min(before + count - state.done, 20_000), workers, Path(folder))
            if state_file is not None:
                state_file.write_text(json.dumps(vars(state), indent=1))
    seconds = time.monotonic() - started
    click.echo(f"{target}: {state.done - before} cases in {seconds:.0f} s, {state.done} in all with seed {seed}")
    click.echo("  " + ", ".join(f"{name} {times}" for name, times in sorted(state.outcomes.items())))
    for failure in state.failures[:_SHOWN]:
        click.echo(f"  case {failure['number']}: {failure['failure'].strip().splitlines()[-1]}")
    click.echo(f"{len(state.failures)} failures")
    sys.exit(bool(state.failures))


if __name__ == "__main__":
    main()
