"""Our own quantization from end to end on small models: ranges, calibration data, the command, gate B."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions
from lowerkit.errors import InputError, LowerkitError, UnsupportedError, UsageError
from lowerkit.parity.gate_b import judge_activation
from lowerkit.quantization.calibration_data import read_calibration, refuse_nan, samples_of
from lowerkit.quantization.methods import METHODS, MinMax, Percentile, make_method, unsigned_scaling
from lowerkit.runtimes.manifest import Signature, TensorSpec
from tests.support.suite.randomness import RANDOM

Array = np.ndarray[Any, Any]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=8, padding=1)
        self.third, self.head = nn.Conv2d(8, 12, 1), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.third(torch.relu(self.second(x)) + x))
        return self.head(x.mean((2, 3)))


def model() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A factory for the command."""
    torch.manual_seed(7)
    return Network().eval(), (torch.randn(2, 3, 10, 9),)


def calibration(count: int = 6) -> Array:
    return np.random.default_rng(5).standard_normal((count, 2, 3, 10, 9)).astype(np.float32)


@pytest.mark.parametrize("method", METHODS)
def test_quantize(method: str) -> None:
    module, inputs = model()
    quantized = lowerkit.quantize(module, {"x": calibration()}, inputs, method=method)
    report = quantized.report
    assert report.passed, [row.to_json() for row in report.activations]
    assert len(report.activations) == 4
    assert not report.refused
    assert all(30 < row.local.sqnr_db < 60 for row in report.activations)
    ours = quantized.compiled(*inputs)
    floats = module(*inputs).detach().numpy()
    error = np.sqrt(np.mean((ours - floats) ** 2) / np.mean(floats**2))
    assert 1e-5 < error < 10 ** (-25 / 20), "no error at all would mean that nothing was quantized"


@pytest.mark.parametrize("form", ["path", "exported", "onnx"])
def test_symbolic_dims_of_what_was_exported_before(form: str, tmp_path: Path) -> None:
    module, inputs = model()
    shapes = ({0: torch.export.Dim("batch", min=1, max=16)},)
    given: Any = torch.export.export(module, inputs, dynamic_shapes=shapes)
    if form == "path":
        torch.export.save(given, tmp_path / "model.pt2")
        given = str(tmp_path / "model.pt2")
    elif form == "onnx":
        exported = torch.onnx.export(given, input_names=["x"], dynamo=True, verbose=False)
        assert exported is not None
        given = exported.model_proto
    quantized = lowerkit.quantize(given, {"x": calibration()})
    assert quantized.report.passed
    x = RANDOM.standard_normal((5, 3, 10, 9)).astype(np.float32)
    (ours,) = quantized.compiled.session.run(x)
    with torch.no_grad():
        floats = module(torch.from_numpy(x)).numpy()
    assert 1e-5 < np.linalg.norm(ours - floats) / np.linalg.norm(floats) < 10 ** (-20 / 20)


def test_the_integer_level_is_reached() -> None:
    from lowerkit.quantization.quantize import Quantization, quantize_program

    module, inputs = model()
    program = capture(module, inputs)
    quantized = quantize_program(program, [[sample] for sample in calibration()], Quantization(), CompileOptions())
    text = program.text()
    assert text.count('"lk.integer_conv"') == 3, "depthwise too"
    assert text.count('"lk.integer_matmul"') == 1
    assert '"lk.conv"' not in text
    assert not [remark for remark in quantized.compiled.remarks if "plain loops" in remark]


class Counting(nn.Module):
    """Adds to its input what it has seen so far."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 5)
        self.register_buffer("seen", torch.zeros(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.sum())
        return self.linear(x + self.seen)


def test_each_run_starts_from_the_initial_states() -> None:
    samples = np.random.default_rng(2).standard_normal((4, 3, 12)).astype(np.float32) + 1
    report = lowerkit.quantize(Counting().eval(), {"x": samples}, (torch.from_numpy(samples[0]),)).report
    assert report.passed
    assert report.kept == []


def test_a_list_of_samples_serves_as_well() -> None:
    module, _ = model()
    quantized = lowerkit.quantize(module, [(torch.from_numpy(sample),) for sample in calibration(2)])
    assert quantized.report.samples == 2


def test_min_max_and_percentile() -> None:
    values = np.linspace(-1, 3, 4001).astype(np.float32)
    everything, most = MinMax(), Percentile(99)
    for method in (everything, most):
        method.observe(values)
        method.observe(np.array([np.nan, np.inf, -np.inf, 5.0], np.float32))
    assert everything.range() == (-1.0, 5.0)
    low, high = most.range()
    assert low == pytest.approx(-0.96, abs=0.01)
    assert high == pytest.approx(2.96, abs=0.01)
    assert MinMax().range() == Percentile().range() == (0.0, 0.0)


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero"), [(-1, 1.55, 0.01, 100), (1, 2.55, 0.01, 0), (-2.55, -1, 0.01, 255), (0, 0, 1, 0)]
)
def test_zero_has_an_exact_place(low: float, high: float, scale: float, zero: int) -> None:
    found = unsigned_scaling(low, high)
    assert found[0] == pytest.approx(scale)
    assert found[1] == zero


@pytest.mark.parametrize("percent", [50, 101, float("nan")])
def test_unknown_methods_and_percentiles(percent: float) -> None:
    with pytest.raises(UsageError, match="LK1009"):
        make_method("percentile", percent)
    with pytest.raises(UsageError, match="the methods are: min-max, percentile, mse"):
        make_method("entropy", 99)


def test_a_percentile_belongs_to_its_method() -> None:
    module, _ = model()
    with pytest.raises(UsageError, match="'min-max' has no percentile"):
        lowerkit.quantize(module, [(torch.zeros(3, 12),)], percentile=99.9)


def signature() -> Signature:
    return Signature([TensorSpec("x", "f32", [2, 3]), TensorSpec("i", "i64", [4])], [], [], [])


def test_samples() -> None:
    x, i = np.zeros((5, 2, 3), np.float32), np.zeros((5, 4), np.int64)
    assert len(samples_of(signature(), {"x": x, "i": i})) == 5
    assert len(samples_of(signature(), {"x": x[0], "i": i[0]})) == 1


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": np.zeros((5, 2, 3), np.float32)}, "input 'i' is missing"),
        ({"x": np.zeros((2, 3), np.float32), "i": np.zeros(4, np.int32)}, "'i' is int32"),
        (
            {"x": np.zeros((2, 4), np.float32), "i": np.zeros(4, np.int64)},
            "'x' has shape (2, 4), the model takes (2, 3) or (samples, 2, 3)",
        ),
        ({"x": np.zeros((5, 2, 3), np.float32), "i": np.zeros((3, 4), np.int64)}, "3, 5 samples"),
        ({"x": np.zeros((0, 2, 3), np.float32), "i": np.zeros((0, 4), np.int64)}, "no samples"),
        ({"y": np.zeros(1)}, "there is no input 'y'"),
    ],
)
def test_calibration_data_that_does_not_fit(arrays: dict[str, Array], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        samples_of(signature(), arrays)
    assert any(problem in detail for detail in caught.value.details), caught.value.details


def test_calibration_data_with_nan_is_refused_with_sample_and_place() -> None:
    """As arrays by name, and as a list of samples."""
    x = torch.randn(5, 3, 12)
    x[2, 1, 0] = x[4, 0, 1] = torch.nan
    for calibration in ({"input": x.numpy()}, [(sample,) for sample in x]):
        with pytest.raises(InputError, match="LK1003.*holds NaN") as caught:
            lowerkit.quantize(torch.nn.Linear(12, 4).eval(), calibration, (x[0],))
        assert list(caught.value.details) == ["'input': 2 of 5 samples, first sample 2 at [1, 0]"]


def test_a_mask_of_calibration_data_may_be_infinite() -> None:
    x, i = np.full((5, 2, 3), -np.inf, np.float32), np.zeros((5, 4), np.int64)
    refuse_nan(signature(), samples_of(signature(), {"x": x, "i": i}))


def test_calibration_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_calibration(tmp_path / "none.npz")
    for name, content in (("text.npz", b"not a zip"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=r"LK1002"):
            read_calibration(tmp_path / name)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"LK1002"):
        read_calibration(tmp_path / "objects.npz")


def test_a_model_without_products_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no product that can be quantized"):
        lowerkit.quantize(nn.Sequential(nn.ReLU()), [(torch.randn(3),)])


def test_gate_b_sees_saturation_and_a_wrong_value() -> None:
    floats = np.random.default_rng(1).standard_normal(4000).astype(np.float32)
    good = judge_activation("a", "", (0.03, 128), floats, np.rint(floats / 0.03).astype(np.float32) * np.float32(0.03))
    assert good.verdict == "ok"
    narrow = judge_activation("a", "", (0.003, 128), floats, np.clip(floats, -0.384, 0.381))
    assert narrow.saturated > 0.5
    assert narrow.verdict == "FAIL"
    assert judge_activation("a", "", (0.03, 128), floats, floats[::-1].copy()).verdict == "FAIL"


def test_16_bit_models_are_refused() -> None:
    module = nn.Linear(8, 4).bfloat16().eval()
    with pytest.raises(LowerkitError, match="no product that can be quantized"):
        lowerkit.quantize(module, [(torch.randn(2, 8).bfloat16(),)])
