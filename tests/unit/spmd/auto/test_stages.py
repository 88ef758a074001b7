"""Stages of a pipeline: contiguous, as even as can be, and no larger than the device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lowerkit.spmd.auto.shorten import Counts
from lowerkit.spmd.auto.stages import Load, balanced, chain_of

PLENTY = 1e12


def slowest(loads: list[Load], stages: list[int]) -> float:
    times: dict[int, float] = {}
    for stage, (seconds, _) in zip(stages, loads, strict=True):
        times[stage] = times.get(stage, 0.0) + seconds
    return max(times.values())


@pytest.mark.parametrize("seed", range(12))
def test_no_cuts_are_better(seed: int) -> None:
    random = np.random.default_rng(seed)
    count, ranks = int(random.integers(4, 10)), int(random.integers(2, 5))
    loads = [(float(seconds), 1) for seconds in random.integers(1, 9, count)]
    found = balanced(loads, ranks, PLENTY)
    assert found == sorted(found)
    assert set(found) == set(range(ranks))
    every = [
        [sum(place >= cut for cut in cuts) for place in range(count)]
        for cuts in itertools.combinations(range(1, count), ranks - 1)
    ]
    assert slowest(loads, found) == min(slowest(loads, cuts) for cuts in every)


def test_memory_moves_a_cut() -> None:
    loads = [(1.0, 10), (1.0, 10), (1.0, 1), (3.0, 1)]
    assert balanced(loads, 2, PLENTY) == [0, 0, 0, 1]
    assert balanced(loads, 2, 15) == [0, 1, 1, 1]


def test_where_nothing_fits_the_fullest_stage_is_as_small_as_can_be() -> None:
    assert balanced([(1.0, 8), (9.0, 2), (1.0, 6)], 2, 1) == [0, 1, 1]


def test_a_chain_of_layers_and_what_is_around_them() -> None:
    counts = Counts({"net.layers.1": 2}, {"net.layers.2": "net.layers.1"})
    paths = ["net", "net.embed", *(f"net.layers.{n}.{name}" for n in range(4) for name in ("", "up"))]
    paths = [path.rstrip(".") for path in paths] + ["net.head"]
    loads: dict[str, Load] = {"net": (0.5, 0), "net.embed": (1.0, 7), "net.head": (2.0, 9)}
    for number in (0, 1, 3):
        loads |= {f"net.layers.{number}": (1.0, 0), f"net.layers.{number}.up": (3.0 + number, 4)}
    chain = chain_of(paths, loads, counts)
    assert chain.patterns[0] == ("net.embed",)
    assert chain.patterns[3] == ("net.layers.2", "net.layers.2.*")
    assert chain.loads == [(1.0, 7), (4.0, 4), (5.0, 4), (5.0, 4), (7.0, 4), (2.0, 9)]
