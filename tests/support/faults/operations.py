"""The operations of the fault matrix on one rank: made, run, and their results compared with what must come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lowerkit.runtimes.collective.calls import Array, Call
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.work import Work
from tests.support.faults.cells import MESSAGE, VICTIM

ELEMENTS = 257


def values(rank: int, step: int, elements: int, dtype: str = "int64") -> Array:
    """Returns what a rank contributes: small whole numbers, others for each rank and step."""
    return ((np.arange(elements) * 7 + 31 * rank + 3 * step) % 101).astype(dtype)


class Wrong(Exception):
    """A result that is not what the ranks put in."""


def _same(got: Array, expected: Array, what: str) -> None:
    if not np.array_equal(got, expected):
        raise Wrong(f"{what}: {got.ravel()[:4]} where {expected.ravel()[:4]} must be")


def run(
    group: Group,
    operation: str,
    step: int,
    root: int,
    elements: int = ELEMENTS,
    dtype: str = "int64",
    behind: bool = False,
) -> Work[Any] | None:
    """Runs one operation and compares what comes of it.

    Args:
        group: of any size.
        operation: a collective's name or ``message``.
        step: makes the values.
        root: of operations with one.
        elements: of each part.
        dtype: a numpy name.
        behind: start it and return its handle at once, comparing nothing.

    Raises:
        LowerkitError: it failed.
        Wrong: other numbers came than must.
    """
    rank, size = group.rank, group.size
    own = values(rank, step, elements, dtype)
    everybody = [values(other, step, elements, dtype) for other in range(size)]

    def part(giver: int, taker: int) -> Array:
        return values(giver * size + taker, step, elements, dtype)

    if operation == MESSAGE:
        _exchange(group, step, own, everybody)
        return None
    calls = group.calls
    given = [part(rank, other) for other in range(size)]
    table: dict[str, Callable[[], Call[Any]]] = {
        "barrier": lambda: calls.barrier(),
        "broadcast": lambda: calls.broadcast(own.copy(), root),
        "reduce": lambda: calls.reduce(own, root),
        "all_reduce": lambda: calls.all_reduce(own),
        "scatter": lambda: calls.scatter(given if rank == root else None, np.empty_like(own), root),
        "gather": lambda: calls.gather(own, root),
        "all_gather": lambda: calls.all_gather(own),
        "reduce_scatter": lambda: calls.reduce_scatter(given),
        "all_to_all": lambda: calls.all_to_all(given),
    }
    call = table[operation]()
    if behind:
        return group.start(call)
    result = group.run(call)
    if operation == "broadcast":
        _same(result, everybody[root], operation)
    elif operation == "all_reduce" or (operation == "reduce" and rank == root):
        _same(result, np.sum(everybody, 0), operation)
    elif operation == "scatter":
        _same(result, part(root, rank), operation)
    elif operation == "all_gather" or (operation == "gather" and rank == root):
        for other in range(size):
            _same(result[other], everybody[other], f"{operation} from rank {other}")
    elif operation == "reduce_scatter":
        _same(result, np.sum([part(other, rank) for other in range(size)], 0), operation)
    elif operation == "all_to_all":
        for other in range(size):
            _same(result[other], part(other, rank), f"{operation} from rank {other}")
    return None


def _exchange(group: Group, step: int, own: Array, everybody: list[Array]) -> None:
    """The victim sends to each other rank, and each answers: so each waits for the victim and it for each."""
    victim = VICTIM if group.size > VICTIM else 0
    others = [rank for rank in range(group.size) if rank != victim] if group.rank == victim else [victim]
    for other in others:
        if group.rank == victim:
            group.run(group.calls.send(own, other, tag=step))
        received = group.run(group.calls.receive(np.empty_like(own), other, tag=step))
        _same(received, everybody[other], f"message from rank {other}")
        if group.rank != victim:
            group.run(group.calls.send(own, other, tag=step))
