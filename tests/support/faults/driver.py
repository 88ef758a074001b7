"""Starts the ranks of cells, takes what they say, and judges it.

A cell passes if every rank that is left has its error (or its results) within the cell's deadline, the errors name
rank, operation and sequence number, the ranks that are left compute rightly in a group of their own, and at the end no
process holds a descriptor, mapping, thread or memory that it did not hold before.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lowerkit.runtimes.collective.tracing.flight_record_file import to_flight_record
from lowerkit.runtimes.collective.tracing.trace import Trace
from tests.support.faults.cells import (
    FAULTY_STEP,
    JOIN_SECONDS,
    MESSAGE,
    ROOTED,
    SIZE,
    STEPS,
    SUBGROUP,
    VICTIM,
    Cell,
)
from tests.support.faults.namespaces import Wire, wire
from tests.support.ranks import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
_START_SECONDS = PATIENCE
_MOST_GROWN = 24 << 20


@dataclass
class Outcome:
    """How a cell went.

    Attributes:
        cell: which.
        problems: what is wrong; empty: passed.
        seconds: until the last rank had its error or results.
        messages: by rank: its error's code and text, empty where it has none.
    """

    cell: Cell
    problems: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    messages: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def later(self) -> bool:
        """Whether a rank names a later operation than the one that the fault struck."""
        return any(place(self.cell, text) == "later" for text in self.messages.values() if text)

    @property
    def message(self) -> str:
        """The first line of the first error of a rank other than the victim, or nothing."""
        said = (text for rank, text in sorted(self.messages.items()) if text and rank != VICTIM)
        return next(said, "").partition("\n")[0]


def run_cells(wanted: list[Cell]) -> list[Outcome]:
    """Runs cells one after the other in one set of processes; returns their outcomes in the same order."""
    needs_wire, loses = wanted[0].wired, wanted[0].fault == "loss"
    with tempfile.TemporaryDirectory(prefix="lowerkit-faults-") as folder, wire() if needs_wire else nullcontext() as w:
        if w is not None and loses:
            w.lose_packets()
        ranks = _Ranks(wanted, Path(folder), w)
        try:
            outcomes = ranks.run()
        finally:
            ranks.end()
        outcomes[-1].problems.extend(files_left(Path(folder)))
        if w is not None and loses and not w.lost():
            outcomes[-1].problems.append("no packet was lost: the cells proved nothing")
    return outcomes


class _Ranks:
    """The processes of one set of cells."""

    def __init__(self, wanted: list[Cell], folder: Path, between: Wire | None) -> None:
        self._cells = wanted
        # By rank: its lines, and None at their end.
        self._lines: list[queue.Queue[str | None]] = [queue.Queue() for _ in range(SIZE)]
        self._processes: list[subprocess.Popen[str]] = []
        self._errors = [folder / f"{rank}.stderr" for rank in range(SIZE)]
        (folder / "temporary").mkdir()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "temporary")}
        for rank in range(SIZE):
            side = int(rank == wanted[0].far)
            specification = {
                "rank": rank,
                "parent": os.getpid(),
                "store": str(folder / "store"),
                "interface": between.addresses[side] if between else None,
                "command": between.cut() if between else [],
                "cells": [cell.to_json() for cell in wanted],
            }
            prefix = between.inside(side) if between else []
            command = [*prefix, sys.executable, "-m", "tests.support.faults.rank", json.dumps(specification)]
            with self._errors[rank].open("w") as errors:
                process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=environment
                )
            self._processes.append(process)
            threading.Thread(target=self._read, args=(rank, process), daemon=True).start()

    def run(self) -> list[Outcome]:
        """Follows all cells to their ends."""
        outcomes: list[Outcome] = []
        for number, cell in enumerate(self._cells):
            limit = cell.deadline + 2 * cell.grace + (_START_SECONDS if number == 0 else cell.grace)
            outcome = Outcome(cell)
            outcomes.append(outcome)
            lines = self._await(set(cell.survivors), "cell", limit)
            if cell.fault == "stopped":
                os.kill(self._processes[VICTIM].pid, signal.SIGCONT)
                lines.update(self._await({VICTIM}, "cell", limit))
            elif cell.fault == "partition":
                lines.update(self._await({VICTIM}, "cell", limit))
            judge(outcome, lines)
            if outcome.problems:
                outcome.problems.extend(self._said())
            hung = [rank for rank in cell.survivors if rank not in lines]
            if hung:
                outcomes += [Outcome(left, ["not run: a rank hung before"]) for left in self._cells[number + 1 :]]
                return outcomes
        killed = self._cells[0].fault in ("killed", "killed within")
        left = {rank for rank in range(SIZE) if not (killed and rank == VICTIM)}
        grace = self._cells[0].grace
        ends = self._await(left, "end", 2 * grace)
        outcomes[-1].problems.extend(leaks(ends))
        for rank, process in enumerate(self._processes):
            try:
                code = process.wait(grace)
            except subprocess.TimeoutExpired:
                outcomes[-1].problems.append(f"the process of rank {rank} does not end")
                continue
            if code != (-signal.SIGKILL if rank not in left else 0):
                outcomes[-1].problems.append(f"the process of rank {rank} ended with {code}")
                outcomes[-1].problems.extend(self._said())
        return outcomes

    def end(self) -> None:
        """Ends every process that is left."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines[rank].put(line)
        self._lines[rank].put(None)

    def _await(self, ranks: set[int], kind: str, limit: float) -> dict[int, dict[str, Any]]:
        """Returns the next line of each rank, as far as they come in time."""
        found: dict[int, dict[str, Any]] = {}
        end = time.monotonic() + limit
        for rank in sorted(ranks):
            try:
                text = self._lines[rank].get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                continue
            if text is not None:
                found[rank] = json.loads(text)
                assert kind in found[rank], text
        return found

    def _said(self) -> Iterator[str]:
        for rank, path in enumerate(self._errors):
            for line in path.read_text().splitlines()[-3:]:
                yield f"stderr of rank {rank}: {line}"


def judge(outcome: Outcome, lines: dict[int, dict[str, Any]]) -> None:
    """Compares what the ranks said with what the cell demands."""
    cell, problems = outcome.cell, outcome.problems
    for rank in cell.survivors:
        if rank not in lines:
            problems.append(f"rank {rank} said nothing within its deadline: it hangs or ended")
    for rank, line in lines.items():
        if not (cell.fault == "stopped" and rank == VICTIM):  # which stood still meanwhile
            outcome.seconds = max(outcome.seconds, float(line["seconds"]))
        if outcome.seconds > cell.deadline:
            problems.append(f"rank {rank} took {line['seconds']:.2f} s, its deadline is {cell.deadline} s")
        if cell.succeeds:
            if line["code"] is not None:
                problems.append(f"rank {rank} failed: {line['message']}")
        elif cell.fault == "no memory":
            problems.extend(_without_memory(rank, line))
        else:
            # Who was stopped or cut off may find all that it needs in its buffers: it learns in what it does next.
            alone = cell.fault in ("stopped", "partition") and rank == VICTIM
            if not (alone and line["code"] is None):
                problems.extend(_names(cell, rank, line))
            problems.extend(_left(cell, rank, line))
    if cell.fault == "slow" and not problems:
        problems.extend(_blamed(cell, lines))
    outcome.messages = {rank: line["message"] for rank, line in sorted(lines.items())}


def _names(cell: Cell, rank: int, line: dict[str, Any]) -> Iterator[str]:
    message = line["message"]
    if line["code"] not in ("LK8008", "LK8009", "LK8010", "LK8011"):
        yield f"rank {rank}: code {line['code']}: {message}"
        return
    if rank == VICTIM:
        named = re.search(r"rank \d", message) is not None
    else:
        named = f"rank {VICTIM}" in message
    if not named:
        yield f"rank {rank}: the error does not name the rank: {message}"
    found = place(cell, message)
    if found is None or (found == "later" and not _may_be_later(cell, rank)):
        yield f"rank {rank}: the error does not name the operation and its number: {message}"


def place(cell: Cell, message: str) -> Literal["exact", "later"] | None:
    """Tells where an error says that the fault struck.

    Returns:
        exact: in the right operation, or after the last one that the victim was seen in, by number (a message: by tag).
        later: in a later operation, in which this rank was when it heard of the fault.
        None: it does not say.
    """
    if cell.operation == MESSAGE:
        if re.search(rf"\b(send|receive)\b.* tag {FAULTY_STEP}\b", message):
            return "exact"
        return "later" if re.search(r"\btag \d|\bbarrier #1\b", message) else None
    numbers = {int(number) for number in re.findall(r"#(\d+)", message)}
    first = len(cell.calls) * (FAULTY_STEP - 1) + 1
    if numbers & set(range(first, first + len(cell.calls))) and any(call in message for call in cell.calls):
        return "exact"
    if re.search(rf"rank {VICTIM} was last seen in .*#{first - 1}\b", message):
        return "exact"
    last = len(cell.calls) * STEPS + 1
    outside = "barrier #2 " in message and cell.operation == SUBGROUP
    return "later" if outside or any(first <= number <= last for number in numbers) else None


def _may_be_later(cell: Cell, rank: int) -> bool:
    """Whether a rank may wait for nobody in the operation that the fault strikes."""
    return cell.operation in (*ROOTED, MESSAGE) or (cell.operation == SUBGROUP and rank > VICTIM)


def _left(cell: Cell, rank: int, line: dict[str, Any]) -> Iterator[str]:
    left = line.get("left", {})
    if rank in cell.survivors:
        if left.get("size") != len(cell.survivors) or not left.get("right"):
            yield f"rank {rank}: the group of those that are left: {left}"
    elif cell.fault == "stopped" and "LK8007" not in left.get("error", ""):
        yield f"rank {rank} was stopped and comes too late, but shrinks to {left}"


def _without_memory(rank: int, line: dict[str, Any]) -> Iterator[str]:
    message = line["message"]
    if line["code"] != "LK7004":
        yield f"rank {rank}: code {line['code']}: {message}"
    if "memory" not in message or "hint:" not in message:
        yield f"rank {rank}: the error does not say what to do: {message}"
    if rank != 0 and "rank 0" not in message:
        yield f"rank {rank}: the error does not name the rank that has no memory: {message}"
    if not line.get("left", {}).get("right"):
        yield f"rank {rank}: a group with memory again: {line.get('left')}"


def _blamed(cell: Cell, lines: dict[int, dict[str, Any]]) -> Iterator[str]:
    group = lines[VICTIM]["record"]["group"]  # a rank may be in another subgroup
    records = [line["record"] for line in lines.values() if line["record"]["group"] == group]
    caused = {row.rank: row.caused for row in Trace.of(map(to_flight_record, records)).ranks}
    least = cell.slow / 2 * 1e9
    if caused[VICTIM] < least or any(blame >= least for rank, blame in caused.items() if rank != VICTIM):
        yield f"the flight records blame {caused} (nanoseconds by rank)"


def leaks(ends: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Yields what processes hold that they did not hold at first."""
    for rank, line in ends.items():
        for what, count in line["after"].items():
            if count > line["before"][what]:
                yield f"rank {rank} holds {count} {what}, {line['before'][what]} at first"
        if line["grown"] > _MOST_GROWN:
            yield f"the memory of rank {rank} grew by {line['grown']} bytes"


def files_left(folder: Path) -> Iterator[str]:
    """Yields what ranks left in their folder for temporary files. Memory that they share has no name."""
    for path in (folder / "temporary").iterdir():
        yield f"the file {path.name} is left"


assert JOIN_SECONDS <= _START_SECONDS
