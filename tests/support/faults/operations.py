"""The operations of the fault matrix on one rank: made, run, and their results compared with what must come out."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.calls import Array, Call
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.work import Plan, Work
from tests.support.faults.cells import COALESCED, MESSAGE, PLAN, SEVERAL, UNEQUAL, VICTIM

ELEMENTS = 257


def values(rank: int, step: int, elements: int, dtype: str = "int64") -> Array:
    """Returns what a rank contributes: small whole numbers, others for each rank and step."""
    return ((np.arange(elements) * 7 + 31 * rank + 3 * step) % 101).astype(dtype)


class Wrong(Exception):
    """A result that is not what the ranks put in."""


@dataclass(frozen=True)
class Step:
    """What a rank puts into one operation, and what must come out.

    Attributes:
        group: of any size.
        number: makes the values.
        root: of operations with one.
        elements: of each part.
        dtype: a numpy name.
    """

    group: Group
    number: int
    root: int
    elements: int = ELEMENTS
    dtype: str = "int64"

    def own(self, rank: int) -> Array:
        """Returns what a rank gives to all."""
        return values(rank, self.number, self.elements, self.dtype)

    def part(self, giver: int, taker: int, unequal: bool = False) -> Array:
        """Returns what one rank gives to one other."""
        elements = self.elements + (5 * giver + 3 * taker if unequal else 0)
        return values(giver * self.group.size + taker, self.number, elements, self.dtype)

    def call(self, operation: str) -> Call[Any]:
        """Makes a collective's call, with arrays of its own."""
        calls, rank, everybody = self.group.calls, self.group.rank, range(self.group.size)
        own = self.own(rank)
        given = [self.part(rank, other, operation == UNEQUAL) for other in everybody]
        match operation:
            case "barrier":
                return calls.barrier()
            case "broadcast":
                return calls.broadcast(own, self.root)
            case "reduce":
                return calls.reduce(own, self.root)
            case "all_reduce":
                return calls.all_reduce(own)
            case "scatter":
                return calls.scatter(given if rank == self.root else None, np.empty_like(own), self.root)
            case "gather":
                return calls.gather(own, self.root)
            case "all_gather":
                return calls.all_gather(own)
            case "reduce_scatter":
                return calls.reduce_scatter(given)
            case "all_to_all":
                return calls.all_to_all(given)
            case _:
                assert operation == UNEQUAL, operation
                return calls.all_to_all(given, [np.empty_like(self.part(other, rank, True)) for other in everybody])

    def compare(self, operation: str, result: Any) -> None:
        """Compares a collective's result.

        Raises:
            Wrong: other numbers came than must.
        """
        rank, everybody = self.group.rank, range(self.group.size)
        expected: Any = None
        match operation:
            case "broadcast":
                expected = self.own(self.root)
            case "all_reduce":
                expected = sum(self.own(other) for other in everybody)
            case "reduce" if rank == self.root:
                expected = sum(self.own(other) for other in everybody)
            case "scatter":
                expected = self.part(self.root, rank)
            case "all_gather":
                expected = [self.own(other) for other in everybody]
            case "gather" if rank == self.root:
                expected = [self.own(other) for other in everybody]
            case "reduce_scatter":
                expected = sum(self.part(other, rank) for other in everybody)
            case "all_to_all" | "unequal all_to_all":
                expected = [self.part(other, rank, operation == UNEQUAL) for other in everybody]
            case _:
                return
        pairs = zip(result, expected, strict=True) if isinstance(expected, list) else [(result, expected)]
        for got, right in pairs:
            if not np.array_equal(got, right):
                raise Wrong(f"{operation}: {got.ravel()[:4]} where {right.ravel()[:4]} must be")


def run(step: Step, operation: str) -> None:
    """Runs one operation of the matrix and compares what comes of it.

    Raises:
        LowerkitError: it failed.
        Wrong: other numbers came than must.
    """
    group = step.group
    if operation == MESSAGE:
        _exchange(step)
    elif operation == PLAN:
        plan = Plan()
        results = [plan.add(group, step.call(one)) for one in SEVERAL]
        plan.run()
        for one, result in zip(SEVERAL, results, strict=True):
            step.compare(one, result)
    elif operation == COALESCED:
        for one, result in zip(SEVERAL, _all_of([group.start(step.call(one)) for one in SEVERAL]), strict=True):
            step.compare(one, result)
    else:
        step.compare(operation, group.run(step.call(operation)))


def start(step: Step, operation: str) -> list[Any]:
    """Starts one operation behind the caller; returns what must live as long as it goes on."""
    group = step.group
    if operation == PLAN:
        running = threading.Thread(target=run, args=(step, operation), daemon=True)
        running.start()
        return [running]
    if operation == MESSAGE:
        others = [rank for rank in range(group.size) if rank != group.rank]
        return [group.start(group.calls.send(step.own(group.rank), other, tag=step.number)) for other in others]
    return [group.start(step.call(one)) for one in (SEVERAL if operation == COALESCED else (operation,))]


def _all_of(works: list[Work[Any]]) -> list[Any]:
    """Waits for all, although one fails: their arrays are in use until then."""
    results: list[Any] = []
    failure: LowerkitError | None = None
    for work in works:
        try:
            results.append(work.wait())
        except LowerkitError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


def _exchange(step: Step) -> None:
    """The victim sends to each other rank, and each answers: so each waits for the victim and it for each."""
    group, tag = step.group, step.number
    own = step.own(group.rank)
    victim = VICTIM if group.size > VICTIM else 0
    others = [rank for rank in range(group.size) if rank != victim] if group.rank == victim else [victim]
    for other in others:
        if group.rank == victim:
            group.run(group.calls.send(own, other, tag=tag))
        received = group.run(group.calls.receive(np.empty_like(own), other, tag=tag))
        if not np.array_equal(received, step.own(other)):
            raise Wrong(f"message from rank {other}: {received[:4]}")
        if group.rank != victim:
            group.run(group.calls.send(own, other, tag=tag))
