"""The statistic behind "explained by rounding", both ways: right computations pass, planted errors never do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lowerkit.capture.torch_export.eager import eager_callable
from lowerkit.parity.gates import judge_model, judge_op
from lowerkit.parity.noise import Noise, noise_of
from lowerkit.parity.references.float64_reference import perturbed_runs
from lowerkit.parity.references.float64_run import torch_float64_outputs
from lowerkit.parity.references.perturbations import Reordering

Array = np.ndarray[Any, Any]


class Cancelling(nn.Module):
    """A network that adds a large number and takes it away again: rounding is magnified."""

    def __init__(self, outputs: int, raised: float, width: int = 32) -> None:
        super().__init__()
        self.raised = raised
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.last = nn.Linear(width, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            raised = torch.relu(layer(x)) + self.raised
            x = raised - raised.mean(dim=-1, keepdim=True)
        return self.last(x)


class Measured:
    """Eager, float64, the noise, and a run that is right in another order of summation."""

    def __init__(self, seed: int, outputs: int, raised: float = 1000) -> None:
        torch.manual_seed(seed)
        x = torch.randn(1, 32)
        eager = eager_callable(Cancelling(outputs, raised), (x,), {})
        inputs = [x.numpy()]
        (self.eager,) = eager(*inputs)
        (self.exact,) = torch_float64_outputs(eager, inputs)
        runs = [run[0] for run in perturbed_runs(inputs, lambda moved: eager(*moved))]
        noise = noise_of(self.eager, runs, self.exact)
        assert noise is not None
        self.noise = noise
        with Reordering(1000 + seed):
            (self.right,) = eager(*inputs)


@pytest.mark.parametrize("outputs", [1, 2, 4, 100])
def test_right_networks_pass_however_few_their_outputs(outputs: int) -> None:
    refused: list[str] = []
    for seed in range(20):
        case = Measured(seed, outputs)
        verdict = judge_model("f32", case.right, case.eager, case.exact, case.noise)
        if not verdict.passed and "top-1" not in verdict.reason:
            refused.append(verdict.reason)
    assert not refused


Planted = Callable[[Array], Array]
ERRORS: dict[str, Planted] = {
    "scale 1.01": lambda value: value * np.float32(1.01),
    "scale 1.001": lambda value: value * np.float32(1.001),
    "sign": lambda value: -value,
    "off by one element": lambda value: np.roll(value, 1, axis=-1),
    "swapped axis": lambda value: value.reshape(10, 10).T.reshape(1, 100),
    "one element": lambda value: np.where(np.arange(value.size) == 3, value + np.float32(0.02), value),
    "shifted": lambda value: value + np.float32(0.01),
    "zeroed tail": lambda value: np.where(np.arange(value.size) >= 97, np.float32(0), value),
}


@pytest.mark.parametrize("error", ERRORS)
def test_planted_errors_are_never_rounding(error: str) -> None:
    for seed in range(2):
        case = Measured(seed, 100, 10)
        wrong = ERRORS[error](case.right)
        assert not judge_model("f32", wrong, case.eager, case.exact, case.noise).passed
        assert not judge_op("f32", wrong, case.eager, case.exact, case.noise).passed


def test_four_values_get_the_allowance_of_four_values() -> None:
    noise = Noise(own=1e-6, own_max=2e-6, moved=1e-6, moved_max=2e-6, freedom=4, runs=9, signal=1.0)
    assert noise.chance == pytest.approx(2.85, abs=0.02)
    assert noise.allowance == 1.5 * noise.chance
    many = Noise(own=1e-6, own_max=4e-6, moved=1e-6, moved_max=4e-6, freedom=1e6, runs=9, signal=1.0)
    assert many.chance == pytest.approx(1.0, abs=0.01)
    assert many.largest_rms == 2e-6


def test_the_quantile_is_that_of_the_ratio_of_mean_squares() -> None:
    """Of 40,000 right values, each beside nine others of its kind, about four exceed what chance may do."""
    generator = np.random.default_rng(0)
    for freedom in (1, 2, 4, 16):
        errors = (generator.standard_normal((40_000, 10, freedom)) ** 2).mean(axis=-1)
        ratio = errors[:, 0] / errors[:, 1:].mean(axis=-1)
        limit = Noise(1.0, 1.0, 1.0, 1.0, freedom, 9, 1.0).chance ** 2
        assert 1 <= int((ratio > limit).sum()) <= 20


def test_an_error_that_perturbing_eager_does_not_show_explains_nothing() -> None:
    """The float64 run computes something else: eager's error to it is no rounding."""
    generator = np.random.default_rng(2)
    eager = generator.standard_normal((4, 100)).astype(np.float32)
    reference = eager.astype(np.float64) * 0.7
    runs = [(eager * (1 + 1e-7 * generator.standard_normal(eager.shape))).astype(np.float32) for _ in range(8)]
    noise = noise_of(eager, runs, reference)
    assert noise is not None
    wrong = eager * np.float32(0.9)
    assert judge_model("f32", wrong, eager, reference, noise).passed is False
    assert judge_op("f32", wrong, eager, reference, noise).passed is False
    assert judge_op("f32", eager, eager, reference, noise).passed


def test_without_a_measurement_nothing_below_40_db_is_explained() -> None:
    generator = np.random.default_rng(3)
    exact = generator.standard_normal((4, 500))
    eager = (exact + 0.02 * generator.standard_normal(exact.shape)).astype(np.float32)
    as_good = (exact + 0.02 * generator.standard_normal(exact.shape)).astype(np.float32)
    assert not judge_model("f32", as_good, eager, exact).passed
    assert not judge_op("f32", as_good, eager, exact).passed
    nearer = (exact + 2e-4 * generator.standard_normal(exact.shape)).astype(np.float32)
    as_near = (exact + 2e-4 * generator.standard_normal(exact.shape)).astype(np.float32)
    assert judge_model("f32", as_near, nearer, exact).passed


def test_freedom_is_that_of_values_that_err_together() -> None:
    generator = np.random.default_rng(4)
    exact = np.ones((1, 1000))
    eager = exact.astype(np.float32)
    together = [(exact + 1e-6 * generator.standard_normal()).astype(np.float32) for _ in range(8)]
    apart = [(exact + 1e-6 * generator.standard_normal(exact.shape)).astype(np.float32) for _ in range(8)]
    first, second = noise_of(eager, together, exact), noise_of(apart[0], apart[1:], exact)
    assert first is not None
    assert second is not None
    assert first.freedom < 5
    assert second.freedom > 200
