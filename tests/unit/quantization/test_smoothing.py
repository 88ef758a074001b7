"""Smoothing against its formula, and on a norm with large channels, as trained transformers have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.errors import UsageError
from lowerkit.parity.gate_b import judge_activation
from lowerkit.parity.metrics import compare
from lowerkit.quantization.insertion import Scaling
from lowerkit.quantization.smoothing import smoothing_factors
from lowerkit.quantization.switches import SwitchedModel
from tests.unit.quantization.test_mixed_precision import observation

Array = np.ndarray[Any, Any]


class Outliers(nn.Module):
    """A norm whose gain makes two channels large, read by two linear layers, then a third behind no norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.left, self.right = nn.LayerNorm(24), nn.Linear(24, 16), nn.Linear(24, 16)
        self.last = nn.Linear(16, 7)
        with torch.no_grad():
            self.norm.weight[[2, 9]] = 60.0
            self.left.weight[:, [2, 9]] *= 0.02
            self.right.weight[:, [2, 9]] *= 0.02

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return self.last(torch.tanh(self.left(x)) * self.right(x))


def outliers() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(2)
    return Outliers().eval(), (torch.randn(3, 9, 24),)


def samples() -> Array:
    return np.random.default_rng(8).standard_normal((6, 3, 9, 24)).astype(np.float32)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.0])
def test_the_formula(alpha: float) -> None:
    random = np.random.default_rng(4)
    magnitudes = random.uniform(0.1, 50, 6).astype(np.float32)
    weights = [random.standard_normal((6, 5)).astype(np.float32), random.standard_normal((6, 3)).astype(np.float32)]
    found = smoothing_factors(magnitudes, weights, alpha)
    rows = [max(float(np.abs(weight[k]).max()) for weight in weights) for k in range(6)]
    plain = np.array([magnitudes[k] ** alpha / rows[k] ** (1 - alpha) for k in range(6)], np.float64)
    np.testing.assert_allclose(found, plain / np.prod(plain) ** (1 / 6), rtol=1e-5)
    assert found.dtype == np.float32


def test_channels_that_are_always_zero_stay_finite() -> None:
    found = smoothing_factors(np.array([0, 1, 2], np.float32), [np.array([[1.0], [0.0], [2.0]], np.float32)], 0.5)
    assert np.all(np.isfinite(found))
    assert np.all(found > 0)


def test_only_what_a_norm_computes_is_smoothed() -> None:
    _, scalings = observation(outliers()[0], samples(), smooth=0.7)
    first, last = scalings
    assert last.factors is None
    assert first.factors is not None
    assert first.factors.shape == (24,)
    assert min(first.factors[[2, 9]]) > 5 * np.median(first.factors)


def test_large_channels_leave_steps_to_the_others() -> None:
    module, inputs = outliers()
    plain = lowerkit.quantize(module, {"x": samples()}, inputs, keep_float=["none"])
    smoothed = lowerkit.quantize(module, {"x": samples()}, inputs, keep_float=["none"], smooth=0.7)
    before, after = (each.report.outputs[0].metrics.sqnr_db for each in (plain, smoothed))
    assert after > before + 6
    assert smoothed.compiled.program.text().count('"lk.integer_matmul"') == 3
    floats = module(*inputs).detach().numpy()
    assert compare(smoothed.compiled(*inputs), floats).sqnr_db == pytest.approx(after, abs=0.5)


def test_a_switched_model_shows_activations_without_smoothing() -> None:
    found, scalings = observation(outliers()[0], samples(), smooth=0.7)
    switched = SwitchedModel(found.program, found.sites, scalings, found.options, None)
    sample = [samples()[1]]
    wanted = found.floats.session.run(*sample)
    for in_floats, least in (([], 25.0), ([0], 25.0), ([0, 1], np.inf)):
        _, activations = switched.run(sample, in_floats)
        assert compare(activations[0], wanted[1]).sqnr_db >= least
    _, activations = switched.run(sample, [])
    assert not np.array_equal(activations[0], wanted[1])


def test_gate_b_takes_distances_with_smoothing_undone() -> None:
    random = np.random.default_rng(6)
    factors = np.array([1, 64], np.float32)
    floats = random.standard_normal((50, 2)).astype(np.float32) * factors
    scaling = Scaling(0.03, 128, factors)
    rounded = np.clip(np.rint(scaling.smoothed(floats) / np.float32(0.03)), -128, 127) * np.float32(0.03)
    row = judge_activation("a", "", (0.03, 128), floats, rounded, factors)
    assert row.local.sqnr_db == pytest.approx(compare(scaling.unsmoothed(rounded), floats).sqnr_db, abs=0.01)
    assert row.cumulative.sqnr_db == pytest.approx(row.local.sqnr_db, abs=0.01)
    assert row.verdict == "ok"


@pytest.mark.parametrize("smooth", [-0.1, 1.1, float("nan")])
def test_smoothing_out_of_range_is_refused(smooth: float) -> None:
    with pytest.raises(UsageError, match="LK1009"):
        lowerkit.quantize(outliers()[0], {"x": samples()}, outliers()[1], smooth=smooth)
