"""Interleaved timing: A B C A B C ..., so that a machine that slows down slows all of them.

Vocabulary
    round    two calls of every contender, the second one counted, in an order that rotates from round to round. Worker
             threads of the contender before may still spin during the first call, and the caches are full of its data.
    warm-up  rounds that are not counted: first calls allocate, compile and fault pages in.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Milliseconds over the counted rounds: median, and the spread as minimum and 90th percentile."""

    median_ms: float
    min_ms: float
    p90_ms: float
    rounds: int

    def to_json(self) -> dict[str, float | int]:
        """Returns the fields."""
        return {"median_ms": self.median_ms, "min_ms": self.min_ms, "p90_ms": self.p90_ms, "rounds": self.rounds}


def time_interleaved(
    contenders: Mapping[str, Callable[[], object]], *, seconds: float, warm_up: int = 3, minimum_rounds: int = 10
) -> dict[str, Timing]:
    """Calls every contender twice a round until ``seconds`` have passed and ``minimum_rounds`` are done."""
    names = list(contenders)
    for _ in range(warm_up):
        for name in names:
            contenders[name]()
    samples: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < minimum_rounds or time.perf_counter() < deadline:
        shift = rounds % len(names)
        for name in names[shift:] + names[:shift]:
            contenders[name]()
            started = time.perf_counter_ns()
            contenders[name]()
            samples[name].append((time.perf_counter_ns() - started) / 1e6)
        rounds += 1
    return {name: _summarize(values) for name, values in samples.items()}


def _summarize(values: list[float]) -> Timing:
    ordered = sorted(values)
    p90 = ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))]
    return Timing(statistics.median(ordered), ordered[0], p90, len(ordered))
