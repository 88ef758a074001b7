"""Random programs split among the ranks of random meshes: `tools/fuzz/sharding.py`, a short run of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lowerkit.passes.shard.collectives import Collectives
from tests.support.fuzz_tools import fuzz_tool

TOGETHER = 50
COMPILED = (0, 1, 3, 66)
"""Programs of seed 12; of the last two the ranks have states in parts."""


@pytest.mark.parametrize(
    "first", [0, 50, *(pytest.param(first, marks=pytest.mark.exhaustive) for first in range(100, 300, TOGETHER))]
)
def test_ranks_in_numpy(first: int) -> None:
    outcome_of = fuzz_tool("sharding").outcome_of
    kinds: Counter[str] = Counter()
    collectives = cut = 0
    for number in range(first, first + TOGETHER):
        _, mesh, outcome = outcome_of(20261126, number)
        assert not outcome.failed, f"--seed 20261126 --only {number}: {outcome} {mesh}"
        kinds[outcome.kind] += 1
        collectives += outcome.collectives
        cut += outcome.cut
    assert kinds["passed"] > TOGETHER * 0.9
    assert collectives > TOGETHER / 2
    assert cut > 0, "states that ranks have in parts"


@pytest.mark.parametrize("number", COMPILED)
def test_compiled_ranks(number: int) -> None:
    _, mesh, outcome = fuzz_tool("sharding").outcome_of(12, number, compiled=True)
    assert outcome.kind == "passed", f"{outcome} {mesh}"


def test_a_sum_that_is_left_out_is_seen_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's own term passes for the sum: programs that need none stay right, and go from what is printed."""
    monkeypatch.setattr(Collectives, "reduced", lambda _self, term, *_rest: term)
    sharding, judge = fuzz_tool("sharding"), fuzz_tool("sharding_judge")
    outcomes = [sharding.outcome_of(3, number) for number in range(40)]
    wrong = [(graph, mesh) for graph, mesh, outcome in outcomes if outcome.kind == "wrong"]
    assert 0 < len(wrong) < len(outcomes)
    graph, mesh = min(wrong, key=lambda pair: len(pair[0].text))
    small, plan = judge.smaller(graph, mesh, "wrong")
    assert judge.judge(small, plan).kind == "wrong"
    assert len(small.text) <= len(graph.text)
    assert sum(map(len, plan.entries)) == 1


def test_the_judge_compares_values_shapes_and_bits() -> None:
    compared = fuzz_tool("sharding_judge").compared
    ones = [np.ones((2, 3), np.float32)]
    assert compared([ones, ones], ones).kind == "passed"
    assert compared([ones, [ones[0] * 1.01]], ones).kind == "wrong"
    assert compared([[ones[0][:1]]], ones).kind == "wrong"
    assert compared([[ones[0] * np.nan]], ones).kind == "wrong"
    assert compared([ones, [ones[0] + np.float32(1e-6)]], ones).detail.endswith("has other bits than rank 0")
