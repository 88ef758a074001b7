"""The range of least squared error against a search over the values themselves, and the histogram under it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.quantization.histogram import Histogram
from lowerkit.quantization.methods import FRACTIONS, SquaredError, squared_error, unsigned_scaling

Array = np.ndarray[Any, Any]

DISTRIBUTIONS = {
    "normal": lambda random: random.standard_normal(5000),
    "heavy tails": lambda random: random.standard_t(3, 5000),
    "positive": lambda random: np.maximum(random.standard_normal(5000), 0) ** 3,
    "negative": lambda random: -random.exponential(2.0, 5000),
    "one outlier": lambda random: np.append(random.standard_normal(20000) * 0.01, 0.5),
    "tiny": lambda random: random.standard_normal(3000) * 1e-9,
    "huge": lambda random: random.standard_normal(3000) * 1e20 + 1e20,
}


def loss(values: Array, low: float, high: float) -> float:
    """Returns the sum of squared errors over the values themselves, in float64."""
    scale, zero = unsigned_scaling(low, high)
    stored = np.clip(np.rint(values / scale) + zero, 0, 255)
    return float((((stored - zero) * scale - values) ** 2).sum())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_range_on_the_grid_is_better(name: str) -> None:
    values = DISTRIBUTIONS[name](np.random.default_rng(12)).astype(np.float32)
    method = SquaredError()
    for part in np.array_split(values, 3):
        method.observe(part)
    exact = values.astype(np.float64)
    low, high = min(float(exact.min()), 0.0), max(float(exact.max()), 0.0)
    best = min(loss(exact, low * left, high * right) for left in FRACTIONS for right in FRACTIONS)
    assert loss(exact, *method.range()) <= best * 1.02
    assert loss(exact, *method.range()) <= loss(exact, low, high) * 1.02


def test_an_outlier_is_cut_where_that_pays() -> None:
    method = SquaredError()
    method.observe(np.append(np.random.default_rng(1).standard_normal(200000), 30.0).astype(np.float32))
    assert method.range()[1] < 25


def test_nothing_and_what_is_not_finite() -> None:
    method = SquaredError()
    assert method.range() == (0.0, 0.0)
    method.observe(np.array([np.nan, np.inf, -np.inf], np.float32))
    assert method.range() == (0.0, 0.0)
    method.observe(np.array([np.nan, 3.0, 3.0], np.float32))
    assert method.range() == (0.0, 3.0)
    zeros = SquaredError()
    zeros.observe(np.zeros(5, np.float32))
    assert zeros.range() == (0.0, 0.0)


def test_the_histogram_does_not_depend_on_the_order() -> None:
    values = np.random.default_rng(7).standard_normal(4000) * np.geomspace(1e-6, 1e6, 4000)
    first, second = Histogram(), Histogram()
    for part in np.array_split(values, 7):
        first.add(part)
    for part in reversed(np.array_split(values, 5)):
        second.add(part)
    np.testing.assert_array_equal(first.counts, second.counts)
    assert first.counts.sum() == 4000
    assert (first.low, first.high) == (values.min(), values.max())
    middles, counts = first.occupied()
    width = 2 * 2.0 ** np.ceil(np.log2(np.abs(values).max())) / first.counts.size
    assert np.repeat(middles, counts) == pytest.approx(np.sort(values), abs=width * 0.51)


def test_counts_weigh() -> None:
    values, counts = np.array([0.1, 0.7, -2.0]), np.array([3, 1, 2])
    wanted = loss(np.repeat(values, counts), -1.0, 1.0)
    assert squared_error(values, counts, -1.0, 1.0) == pytest.approx(wanted)
