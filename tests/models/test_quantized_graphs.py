"""Quantized graphs of others, imported: decomposed PyTorch graphs and QDQ models, against what their owners compute."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.capture.onnx.eager import exact_session
from lowerkit.compiler import CompileOptions, compile_program, lower_program
from tests.support.suite.randomness import RANDOM

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the ops
decomposed = torch.ops.quantized_decomposed
Array = np.ndarray[Any, Any]


class Fake(nn.Module):
    """Quantizes and dequantizes; as an observer's convert writes it."""

    def __init__(self, scale: float, zero_point: int, dtype: torch.dtype) -> None:
        super().__init__()
        limits = torch.iinfo(dtype)
        self.arguments = (scale, zero_point, limits.min, limits.max, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stored = decomposed.quantize_per_tensor(x, *self.arguments)
        return decomposed.dequantize_per_tensor(stored, *self.arguments)


class Weight(nn.Module):
    """A weight as integers, one scale for each output channel."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("stored", torch.randint(-127, 128, shape, dtype=torch.int8))
        self.register_buffer("scales", torch.rand(shape[0]) * 0.01 + 0.001)
        self.register_buffer("points", torch.zeros(shape[0], dtype=torch.int64))

    def forward(self) -> torch.Tensor:
        return decomposed.dequantize_per_channel(self.stored, self.scales, self.points, 0, -127, 127, torch.int8)


class Network(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        middle = 128 if dtype == torch.uint8 else 0
        self.first, self.second, self.third = Weight(8, 3, 3, 3), Weight(8, 8, 1, 1), Weight(5, 8)
        self.bias = nn.Parameter(torch.randn(8) * 0.1)
        self.enter = Fake(0.031, middle + 3, dtype)
        self.activated = Fake(0.017, middle - 128, dtype)
        self.branch, self.summed = Fake(0.023, middle + 11, dtype), Fake(0.029, middle - 128, dtype)
        self.leave = Fake(0.041, middle - 7, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        x = self.activated(nn.functional.conv2d(x, self.first(), self.bias, stride=2, padding=1).relu())
        branch = self.branch(nn.functional.conv2d(x, self.second(), None))
        x = self.summed((branch + x).relu())
        return self.leave(nn.functional.linear(x.flatten(2).transpose(1, 2), self.third(), None))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_decomposed_graphs(dtype: torch.dtype) -> None:
    network = Network(dtype).eval()
    x = torch.randn(2, 3, 12, 10)
    program = capture(network, (x,))
    context = lower_program(program, "canonical", CompileOptions())
    text = program.text()
    assert text.count("lk.integer_conv") == 2
    assert text.count("lk.integer_matmul") == 1
    assert text.count("lk.requant") == 3
    assert not context.remarks
    ours = compile_program(program, CompileOptions()).session.run(x)[0]
    eager = network(x).numpy()
    step = network.leave.arguments[0]
    steps = np.rint((ours - eager) / step)
    # Ties apart: eager rounds a quotient of floats, we a product of integers.
    assert np.abs(steps).max() <= 1
    assert np.count_nonzero(steps) <= max(1, steps.size // 1000)
    assert np.unique(ours).size > 20


class Bounded(nn.Module):
    """A convolution with bounds between it and the quantization of its result."""

    def __init__(self, bounds: Any) -> None:
        super().__init__()
        self.bounds, self.weight, self.bias = bounds, Weight(8, 3, 3, 3), nn.Parameter(torch.randn(8) * 0.1)
        self.enter, self.leave = Fake(0.031, 131, torch.uint8), Fake(0.017, 120, torch.uint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.bounds(nn.functional.conv2d(self.enter(x), self.weight(), self.bias)))


@pytest.mark.parametrize(
    "bounds",
    [
        nn.ReLU(),
        nn.ReLU6(),
        nn.Hardtanh(-0.31, 0.57),
        nn.Sequential(nn.Hardtanh(-0.31, 0.57), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.Hardtanh(-0.6, -0.4)),
        lambda x: x.clamp_min(-0.2),  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
        lambda x: x.clamp(max=0.4),  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
        nn.Identity(),
    ],
)
def test_bounds_become_bounds_of_the_stored(bounds: Any) -> None:
    network = Bounded(bounds).eval()
    x = torch.randn(2, 3, 12, 10)
    program = capture(network, (x,))
    lower_program(program, "canonical", CompileOptions())
    assert program.text().count("lk.requant") == 1
    ours = compile_program(program, CompileOptions()).session.run(x)[0]
    steps = np.rint((ours - network(x).numpy()) / network.leave.arguments[0])
    assert np.abs(steps).max() <= 1
    assert np.count_nonzero(steps) <= max(1, steps.size // 1000)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: torch.where(x < 0.3, 0.2, x),  # pyright: ignore[reportUnknownLambdaType]
        lambda x: torch.where(x < 0.3, x, 0.3 + x),  # pyright: ignore[reportUnknownLambdaType]
        lambda x: torch.where(x * 2 < 0.3, 0.3, x),  # pyright: ignore[reportUnknownLambdaType]
        lambda x: torch.where(x.flip(0) < 0.3, 0.3, x),  # pyright: ignore[reportUnknownLambdaType]
        nn.LeakyReLU(),
    ],
)
def test_what_only_looks_like_bounds_stays(other: Any) -> None:
    network = Bounded(other).eval()
    x = torch.randn(2, 3, 12, 10)
    program = capture(network, (x,))
    lower_program(program, "canonical", CompileOptions())
    assert program.text().count("lk.requant") == 0
    ours = compile_program(program, CompileOptions()).session.run(x)[0]
    steps = np.rint((ours - network(x).numpy()) / network.leave.arguments[0])
    assert np.count_nonzero(steps) <= max(1, steps.size // 1000)


class DynamicLinear(nn.Module):
    """A linear layer whose input is quantized by what it holds."""

    def __init__(self, choose: Any, dtype: torch.dtype) -> None:
        super().__init__()
        limits = torch.iinfo(dtype)
        self.choose, self.range = choose, (limits.min, limits.max)
        self.dtype = dtype
        self.weight = Weight(9, 22)
        self.bias = nn.Parameter(torch.randn(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, point = self.choose(x, *self.range, 1e-5, self.dtype)
        stored = decomposed.quantize_per_tensor.tensor(x, scale, point, *self.range, self.dtype)
        back = decomposed.dequantize_per_tensor.tensor(stored, scale, point, *self.range, self.dtype)
        return nn.functional.linear(back, self.weight(), self.bias)


@pytest.mark.parametrize("shift", [0.0, 3.0], ids=["both signs", "above zero"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("name", ["choose_qparams", "choose_qparams_symmetric"])
def test_decomposed_graphs_with_parameters_at_run_time(name: str, dtype: torch.dtype, shift: float) -> None:
    module = DynamicLinear(getattr(decomposed, name).tensor, dtype).eval()
    x = torch.randn(3, 5, 22) + shift
    program = capture(module, (x,))
    context = lower_program(program, "canonical", CompileOptions())
    assert program.text().count("lk.integer_matmul") == 1
    assert not context.remarks
    compiled = compile_program(program, CompileOptions())
    for given in (x, x * 7, torch.zeros_like(x)):
        eager = module(given).detach().numpy()
        np.testing.assert_allclose(compiled.session.run(given)[0], eager, rtol=0, atol=2e-6 * np.abs(eager).max())


def test_graphs_of_torchao() -> None:
    """In a process of its own: importing torchao changes how other models load."""
    if find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    command = "from tests.models.test_quantized_graphs import check_graphs_of_torchao as check; check()"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def check_graphs_of_torchao() -> None:
    pt2e = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
    x86: Any = importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")

    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(4 * 36, 7)).eval()
    x = torch.randn(2, 3, 8, 8)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = pt2e.prepare_pt2e(torch.export.export(module, (x,)).module(), quantizer)
    prepared(x)
    converted = pt2e.convert_pt2e(prepared)
    program = capture(converted, (x,))
    lower_program(program, "canonical", CompileOptions())
    text = program.text()
    assert text.count("lk.integer_conv") == 2, text
    assert text.count("lk.integer_matmul") == 1
    ours = compile_program(program, CompileOptions()).session.run(x)[0]
    eager = converted(x).detach().numpy()
    # Requantization may round two ties of a thousand to the other side: two inputs of the last layer off by a step.
    hidden, last = module[:-1](x).detach(), module[-1]
    assert isinstance(last, nn.Linear)
    step = float(hidden.max() - hidden.min()) / 255
    assert np.abs(ours - eager).max() <= 2.2 * step * float(last.weight.abs().max())
    assert np.abs(eager).max() > 10 * step


def qdq_model(activation: int, *, per_channel: bool, batch: int | str = 2) -> onnx.ModelProto:
    """x -> conv 3x3 -> relu -> conv 1x1 -> add -> mean over pixels -> gemm, with a pair around everything."""
    random = RANDOM
    constants: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []
    unsigned = activation == TensorProto.UINT8

    def pair(value: str, scale: float, point: int) -> str:
        constants[f"{value}.s"] = np.array(scale, np.float32)
        constants[f"{value}.z"] = np.array(point, np.uint8 if unsigned else np.int8)
        parameters = [f"{value}.s", f"{value}.z"]
        nodes.append(helper.make_node("QuantizeLinear", [value, *parameters], [f"{value}.q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{value}.q", *parameters], [f"{value}.d"]))
        return f"{value}.d"

    def weight(name: str, shape: tuple[int, ...], scale_of_input: float, largest: float = 0.01) -> tuple[str, str]:
        outputs = shape[0]
        scales = random.uniform(0.001, largest, outputs if per_channel else ()).astype(np.float32)
        constants[f"{name}.q"] = random.integers(-127, 128, shape).astype(np.int8)
        constants[f"{name}.b"] = random.integers(-2000, 2000, outputs).astype(np.int32)
        constants[f"{name}.s"], constants[f"{name}.t"] = (
            scales,
            (scales * np.float32(scale_of_input)).astype(np.float32),
        )
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", f"{name}.s"], [f"{name}.w"], axis=0))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}.b", f"{name}.t"], [f"{name}.c"], axis=0))
        return f"{name}.w", f"{name}.c"

    low = 0 if unsigned else -128
    x = pair("x", 0.031, low + 131)
    nodes.append(helper.make_node("Conv", [x, *weight("a", (8, 3, 3, 3), 0.031)], ["h"], pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("Relu", ["h"], ["r"]))
    r = pair("r", 0.021, low)
    nodes.append(helper.make_node("Conv", [r, *weight("b", (8, 8, 1, 1), 0.021)], ["i"]))
    nodes.append(helper.make_node("Add", [pair("i", 0.027, low + 120), r], ["j"]))
    j = pair("j", 0.03, low + 77)
    nodes.append(helper.make_node("GlobalAveragePool", [j], ["k"]))
    nodes.append(helper.make_node("Flatten", [pair("k", 0.012, low + 100)], ["l"]))
    # A mean that is a tie may be rounded to either side: by the weights half a step of the result at most.
    last = weight("c", (6, 8), 0.012, largest=0.0045)
    nodes.append(helper.make_node("Gemm", [pair("l", 0.012, low + 100), *last], ["m"], transB=1))
    pair("m", 0.015, low + 128)
    graph = helper.make_graph(
        nodes,
        "qdq",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, 3, 9, 7))],
        [helper.make_tensor_value_info("m.d", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def literal_session(model: onnx.ModelProto) -> Any:
    """Returns a session that computes what the model says: fused integer kernels round more often than it does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return exact_session(options, model.SerializeToString())


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", [TensorProto.UINT8, TensorProto.INT8])
def test_qdq_models(activation: int, per_channel: bool) -> None:
    model = qdq_model(activation, per_channel=per_channel)
    x = RANDOM.standard_normal((2, 3, 9, 7)).astype(np.float32)
    program = capture_onnx(model)
    context = lower_program(program, "canonical", CompileOptions())
    text = program.text()
    assert (text.count("lk.integer_conv"), text.count("lk.integer_matmul"), text.count("lk.requant")) == (2, 1, 3)
    assert not context.remarks
    ours = compile_program(program, CompileOptions()).session.run(x)[0]
    theirs = np.asarray(literal_session(model).run(None, {"x": x})[0])
    assert np.abs(np.rint((ours - theirs) / 0.015)).max() <= 1
    assert np.unique(ours).size > 3


def test_a_symbolic_batch() -> None:
    model = qdq_model(TensorProto.UINT8, per_channel=True, batch="n")
    session = literal_session(model)
    program = capture_onnx(model)
    compiled = compile_program(program, CompileOptions())
    assert not [remark for remark in compiled.remarks if "left" in remark]
    for batch in (1, 3):
        x = RANDOM.standard_normal((batch, 3, 9, 7)).astype(np.float32)
        theirs = np.asarray(session.run(None, {"x": x})[0])
        (ours,) = compiled.session.run(x)
        assert ours.shape == theirs.shape
        assert np.abs(np.rint((ours - theirs) / 0.015)).max() <= 1


def test_integers_at_the_boundary() -> None:
    """uint8 in and out: nothing is flipped that a caller sees."""
    random = RANDOM
    constants = {
        "s": np.array(0.1, np.float32), "z": np.array(200, np.uint8), "t": np.array(0.2, np.float32),
        "w": random.integers(-100, 100, (12, 5)).astype(np.int8), "v": np.array(0.01, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "v"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "t", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (4, 12))],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, (4, 5))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = random.integers(0, 256, (4, 12)).astype(np.uint8)
    program = capture_onnx(model)
    ours = compile_program(program, CompileOptions()).session.run(x)[0]
    exact = (x.astype(np.int64) - 200) @ constants["w"].astype(np.int64) * (0.1 * 0.01 / 0.2)
    expected = np.clip(np.rint(exact) + 200, 0, 255)
    assert ours.dtype == np.uint8
    assert np.abs(ours.astype(np.int64) - expected).max() <= 1


def test_a_module_runs_through_the_public_function() -> None:
    network = Network(torch.uint8).eval()
    x = torch.randn(2, 3, 12, 10)
    assert lowerkit.compile(network, (x,))(x).shape == (2, 30, 5)
