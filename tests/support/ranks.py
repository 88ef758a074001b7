"""Ranks as threads of the test's process, with a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

PATIENCE = 240.0
"""Seconds after which a wait counts as a hang. Nothing that works takes as long, on however busy a machine."""


def run_ranks(
    size: int, rank_function: Callable[[int], Result], timeout: float = PATIENCE
) -> list[Result | BaseException]:
    """Runs ``rank_function(rank)`` in a thread for each rank; returns results, or what was raised, by rank."""
    results: list[Result | BaseException] = [TimeoutError(f"rank {rank} hangs") for rank in range(size)]

    def run(rank: int) -> None:
        try:
            results[rank] = rank_function(rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    return results


def succeed(size: int, rank_function: Callable[[int], Result], timeout: float = PATIENCE) -> list[Result]:
    """Runs ranks as :func:`run_ranks` does; raises what the first failing one raised."""
    results: list[Result] = []
    for result in run_ranks(size, rank_function, timeout):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results
