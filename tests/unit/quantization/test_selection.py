"""The choice of products to keep in floats against every subset there is."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowerkit.quantization.selection import keep_in_floats

Array = np.ndarray[Any, Any]


def cheapest(noise: Array, limit: Array, cost: Array) -> float:
    """Returns the least cost of all choices that hold."""
    count = len(noise)
    subsets = (set(kept) for size in range(count + 1) for kept in combinations(range(count), size))
    return min(
        sum(cost[list(kept)])
        for kept in subsets
        if np.all(noise[[row for row in range(count) if row not in kept]].sum(0) <= limit)
    )


def holds(noise: Array, limit: Array, kept: list[int]) -> bool:
    rest = [row for row in range(len(noise)) if row not in kept]
    return bool(np.all(noise[rest].sum(0) <= limit * (1 + 1e-9)))


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_a_choice_holds_and_nothing_in_it_can_be_spared(seed: int, products: int, tensors: int) -> None:
    random = np.random.default_rng(seed)
    noise, limit = random.exponential(size=(products, tensors)), random.uniform(0.1, 4, tensors)
    cost = random.integers(1, 9, products).astype(np.float64)
    kept = keep_in_floats(noise, limit, cost)
    assert holds(noise, limit, kept)
    for row in kept:
        assert not holds(noise, limit, [other for other in kept if other != row])
    assert cost[kept].sum() >= cheapest(noise, limit, cost) - 1e-9


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_with_one_limit_and_equal_costs_the_choice_is_the_best(seed: int) -> None:
    random = np.random.default_rng(seed)
    noise, cost = random.exponential(size=(7, 1)), np.ones(7)
    limit = random.uniform(0.5, 4, 1)
    assert cost[keep_in_floats(noise, limit, cost)].sum() == cheapest(noise, limit, cost)


@pytest.mark.parametrize("bad", [3.0, 1e30, np.inf])
def test_a_planted_product_is_found(bad: float) -> None:
    noise = np.full((6, 3), 0.01)
    noise[4, 2] = bad
    assert keep_in_floats(noise, np.ones(3), np.array([1.0, 1, 1, 1, 50, 1])) == [4]


def test_of_two_that_would_do_the_cheaper_one_stays() -> None:
    noise = np.array([[0.7], [0.7]])
    assert keep_in_floats(noise, np.ones(1), np.array([5.0, 1.0])) == [1]


def test_what_holds_is_left_alone_and_what_cannot_hold_is_kept_whole() -> None:
    assert keep_in_floats(np.full((3, 2), 0.3), np.ones(2), np.ones(3)) == []
    assert keep_in_floats(np.full((3, 2), 5.0), np.ones(2), np.ones(3)) == [0, 1, 2]
    assert keep_in_floats(np.full((2, 1), 5.0), np.ones(1), np.zeros(2)) == [0, 1]
