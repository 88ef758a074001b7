"""Products switched between int8 and floats, what each costs, and the search for a planted bad one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.parity.metrics import compare
from lowerkit.quantization.insertion import Scaling, insert
from lowerkit.quantization.methods import MinMax
from lowerkit.quantization.mixed_precision import MixedPrecision
from lowerkit.quantization.observation import Observation, choose_scalings, compile_observed
from lowerkit.quantization.sensitivity import relative_noise
from lowerkit.quantization.switches import SwitchedModel
from tests.unit.quantization.test_quantize import calibration, model

Array = np.ndarray[Any, Any]


class Planted(nn.Module):
    """Linear layers; the second reads a constant that is a thousand times larger than all else and means nothing."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Linear(12, 16), nn.Linear(16, 20)
        with torch.no_grad():
            first.bias[3] = 1000.0
            second.weight[:, 3] = 0.0
        self.layers = nn.ModuleList([first, second, nn.Linear(20, 16), nn.Linear(16, 5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def planted() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A factory for the command."""
    torch.manual_seed(11)
    return Planted().eval(), (torch.randn(6, 12),)


def planted_samples(count: int = 5) -> Array:
    return np.random.default_rng(3).standard_normal((count, 6, 12)).astype(np.float32)


def observation(module: nn.Module, samples: Array, smooth: float = 0.0) -> tuple[Observation, list[Scaling]]:
    program = capture(module, (torch.from_numpy(samples[0]),))
    found = compile_observed(program, [[sample] for sample in samples], CompileOptions(golden=False), None)
    return found, choose_scalings([found], MinMax, smooth)


@pytest.fixture(scope="module")
def network() -> tuple[Observation, list[Scaling], SwitchedModel]:
    found, scalings = observation(model()[0], calibration())
    return found, scalings, SwitchedModel(found.program, found.sites, scalings, CompileOptions(), None)


Network = tuple[Observation, list[Scaling], SwitchedModel]


def test_switched_to_floats_it_is_the_float_model_bit_for_bit(network: Network) -> None:
    found, _, switched = network
    sample = [calibration()[3]]
    wanted = found.floats.session.run(*sample)
    outputs, activations = switched.run(sample, range(len(found.sites.sites)))
    for left, right in zip([*outputs, *activations], wanted, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("in_floats", [(), (0,), (1,), (0, 2)])
def test_each_choice_computes_what_a_model_compiled_for_it_does(network: Network, in_floats: tuple[int, ...]) -> None:
    found, scalings, switched = network
    sample = [calibration()[2]]
    program = found.program.copy()
    insert(program, found.sites, scalings, in_floats)
    wanted = compile_program(program).session.run(*sample)
    outputs, activations = switched.run(sample, in_floats)
    floats = found.floats.session.run(*sample)
    assert compare(outputs[0], wanted[0]).sqnr_db > compare(outputs[0], floats[0]).sqnr_db + 15
    for value, activation in enumerate(activations):
        stays = all(place in in_floats for place, site in enumerate(found.sites.sites) if site.value == value)
        steps = activation / scalings[value].scale
        assert np.allclose(steps, np.rint(steps), atol=1e-3) != stays, value


def test_the_planted_product_is_found() -> None:
    samples = planted_samples()
    found, scalings = observation(planted()[0], samples)
    switched = SwitchedModel(found.program, found.sites, scalings, CompileOptions(), None)
    search = MixedPrecision(switched, found.sites)
    for number, sample in enumerate(samples):
        search.add([sample], measured=number == 0)
    choice = search.choose()
    assert choice.in_floats == [1]
    assert choice.alone_db[0] < 25
    assert choice.gained_db[0] > 5
    asked = MixedPrecision(switched, found.sites, always=[3])
    asked.add([samples[0]], measured=True)
    assert asked.choose().in_floats == [1, 3]


def test_quantize_keeps_it_in_floats() -> None:
    module, inputs = planted()
    fails = lowerkit.quantize(module, {"x": planted_samples()}, inputs, keep_float=["none"]).report
    assert not fails.passed
    assert fails.kept == []
    quantized = lowerkit.quantize(module, {"x": planted_samples()}, inputs)
    report = quantized.report
    assert report.passed
    (row,) = report.kept
    assert row.module_path == "layers.1"
    assert not row.asked
    assert row.flops_share == pytest.approx(16 * 20 / (12 * 16 + 16 * 20 + 20 * 16 + 16 * 5))
    assert report.without_choice[0].metrics.sqnr_db == fails.outputs[0].metrics.sqnr_db
    assert len(report.activations) == len(fails.activations), "what is not rounded is judged all the same"
    assert [activation.scale is None for activation in report.activations] == [False, True, False, False]
    ours, floats = quantized.compiled(*inputs), module(*inputs).detach().numpy()
    assert compare(ours, floats).sqnr_db == pytest.approx(report.outputs[0].metrics.sqnr_db, abs=0.5)


def test_products_that_were_asked_for_stay_in_floats() -> None:
    module, inputs = planted()
    quantized = lowerkit.quantize(module, {"x": planted_samples()}, inputs, keep_float=["layers.1", "linear_3"])
    assert quantized.report.passed
    assert [(row.module_path, row.asked, row.alone_db) for row in quantized.report.kept] == [
        ("layers.1", True, None),
        ("layers.3", True, None),
    ]
    text = quantized.compiled.program.text()
    assert text.count('"lk.integer_matmul"') == text.count('"lk.matmul"') == 2


def test_inputs_that_leave_the_range_are_taken_into_the_choice() -> None:
    module, inputs = model()
    quantized = lowerkit.quantize(module, {"x": calibration() * 0.2}, inputs)
    assert quantized.report.passed
    assert quantized.report.chosen_again
    assert quantized.report.kept


def test_noise_is_what_sqnr_says() -> None:
    random = np.random.default_rng(9)
    wanted = random.standard_normal((40, 30)).astype(np.float32)
    found = wanted + np.float32(0.01) * random.standard_normal((40, 30)).astype(np.float32)
    for kind in (np.float32, np.float64):
        noise = relative_noise(found.astype(kind), wanted.astype(kind))
        assert -10 * np.log10(noise) == pytest.approx(compare(found, wanted).sqnr_db, abs=1e-3)
    assert relative_noise(wanted, wanted) == 0
    assert relative_noise(np.zeros(3, np.float32), np.zeros(3, np.float32)) == 0
    assert relative_noise(np.ones(3, np.float32), np.zeros(3, np.float32)) == np.inf
    assert relative_noise(np.array([1, np.nan], np.float32), np.array([1, 2], np.float32)) == np.inf
    assert relative_noise(np.array([1, np.inf], np.float32), np.array([1, np.inf], np.float32)) == 0
