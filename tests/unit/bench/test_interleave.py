"""The interleaved timer: equal rounds for all, order rotating, warm-up not counted."""

from __future__ import annotations

from lowerkit.bench.interleave import time_interleaved


def test_rounds_are_equal_and_interleaved() -> None:
    calls: list[str] = []
    contenders = {name: (lambda name=name: calls.append(name)) for name in ("a", "b", "c")}
    timings = time_interleaved(contenders, seconds=0.0, warm_up=2, minimum_rounds=6)
    assert {timing.rounds for timing in timings.values()} == {6}
    assert len(calls) == 3 * (2 + 2 * 6)
    counted = [calls[6 + 6 * index : 12 + 6 * index] for index in range(6)]
    assert all(sorted(one_round) == ["a", "a", "b", "b", "c", "c"] for one_round in counted)
    assert all(one_round[::2] == one_round[1::2] for one_round in counted), "the second call follows the first"
    assert {one_round[0] for one_round in counted} == {"a", "b", "c"}


def test_median_lies_between_minimum_and_p90() -> None:
    timing = time_interleaved({"a": lambda: sum(range(1000))}, seconds=0.01)["a"]
    assert timing.min_ms <= timing.median_ms <= timing.p90_ms
