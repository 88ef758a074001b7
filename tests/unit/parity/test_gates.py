"""Metrics and gate A: what passes, what fails, and that a planted error is never explained away."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from lowerkit.parity.gates import judge_model, judge_op
from lowerkit.parity.metrics import compare


def test_compare_equal_arrays_has_infinite_sqnr() -> None:
    values = np.arange(6, dtype=np.float32)
    metrics = compare(values, values)
    assert math.isinf(metrics.sqnr_db) and metrics.cosine == pytest.approx(1.0)
    assert metrics.to_json()["sqnr_db"] is None


def test_compare_known_distance() -> None:
    metrics = compare(np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 1.0]))
    assert metrics.max_abs == 1.0
    assert metrics.rms == pytest.approx(math.sqrt(1 / 3))
    assert metrics.sqnr_db == pytest.approx(10 * math.log10(6))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_special_values_are_compared_by_position(bad: float) -> None:
    left, right = np.array([1.0, bad, 3.0]), np.array([1.0, bad, 3.0])
    assert compare(left, right).special_equal
    right[1] = 2.0
    assert not compare(left, right).special_equal
    assert not judge_op("f32", left.astype(np.float32), right.astype(np.float32), None).passed
    assert not judge_model("f32", left.astype(np.float32), right.astype(np.float32)).passed


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length", [16, 257, 4096])
def test_rounding_is_explained_and_a_planted_bug_is_not(seed: int, length: int) -> None:
    generator = np.random.default_rng(seed)
    left = generator.standard_normal((32, length)).astype(np.float32)
    right = generator.standard_normal((length, 64)).astype(np.float32)
    # Two thousand values: the largest error of a handful may well be twice that of another order of summation.
    exact = left.astype(np.float64) @ right.astype(np.float64)
    eager = left @ right
    reordered = left[:, ::-1] @ right[::-1]
    assert judge_op("f32", reordered, eager, exact).passed
    wrong = reordered.copy()
    wrong[2, 3] += 1e-2
    assert not judge_op("f32", wrong, eager, exact).passed


def test_without_float64_only_the_tolerance_counts() -> None:
    eager = np.full(4, 100.0, np.float32)
    assert judge_op("f32", eager + np.float32(1e-4), eager, None).passed
    assert not judge_op("f32", eager + np.float32(1e-2), eager, None).passed


def test_integers_must_be_equal() -> None:
    assert judge_op("i64", np.array([1, 2]), np.array([1, 2]), None).passed
    assert not judge_op("i64", np.array([1, 3]), np.array([1, 2]), None).passed
    assert not judge_model("i64", np.array([1, 3]), np.array([1, 2])).passed


@pytest.mark.parametrize(
    ("dtype", "numpy_dtype", "decibels"), [("f32", np.float32, 100), ("bf16", ml_dtypes.bfloat16, 40)]
)
def test_model_gate_is_the_sqnr_of_the_table(dtype: str, numpy_dtype: type, decibels: int) -> None:
    generator = np.random.default_rng(1)
    eager = generator.standard_normal((8, 1000)).astype(numpy_dtype)
    noise = generator.standard_normal(eager.shape)

    def with_noise(ratio_db: float) -> np.ndarray:
        return (eager.astype(np.float64) + noise * 10 ** (-ratio_db / 20)).astype(np.float64)

    assert judge_model(dtype, with_noise(decibels + 3), eager).passed
    verdict = judge_model(dtype, with_noise(decibels - 3), eager)
    assert not verdict.passed and "dB" in verdict.reason


def test_top1_may_differ_only_inside_the_margin() -> None:
    eager = np.zeros((1, 4000), np.float32)
    eager[0, :] = np.linspace(0, 1000, 4000)
    swapped = eager.copy()
    swapped[0, 0] = 1001.0
    verdict = judge_model("bf16", swapped, eager)
    assert not verdict.passed


def test_a_model_in_bf16_may_be_as_far_from_float64_as_eager_but_not_farther() -> None:
    generator = np.random.default_rng(5)
    exact = generator.standard_normal((4, 500))
    eager = exact + 0.05 * generator.standard_normal(exact.shape)
    as_good = exact + 0.05 * generator.standard_normal(exact.shape)
    worse = exact + 0.15 * generator.standard_normal(exact.shape)
    assert judge_model("bf16", as_good, eager, exact).reason.startswith("explained by rounding")
    assert not judge_model("bf16", worse, eager, exact).passed
    assert not judge_model("bf16", as_good, eager).passed
