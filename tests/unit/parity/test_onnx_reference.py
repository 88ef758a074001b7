"""The float64 reference of ONNX models: it is float64 all through, and right where ONNX's own evaluator is not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from lowerkit.parity.check import check
from lowerkit.parity.references.onnx_nodes import onnx_float64_values

Array = np.ndarray[Any, Any]


def model_of(
    nodes: list[onnx.NodeProto], shape: list[int], weights: dict[str, Array], opset: int = 17
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def float64_of(model: onnx.ModelProto, x: Array) -> Array:
    program: Any = SimpleNamespace(onnx_model=model)
    value = onnx_float64_values(program, [x])["y"]
    assert value.dtype == np.float64
    return value


def test_constants_weights_and_casts_are_widened() -> None:
    nodes = [
        helper.make_node("Constant", [], ["third"], value_float=1 / 3),
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["narrow"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "w"], ["product"]),
        helper.make_node("Mul", ["product", "third"], ["y"]),
    ]
    x, w = np.array([0.1, 3.7], np.float32), np.array([1.1, 2.3], np.float32)
    model = model_of(nodes, [2], {"w": w})
    expected = x.astype(np.float64) * w.astype(np.float64) * np.float64(np.float32(1 / 3))
    np.testing.assert_allclose(float64_of(model, x), expected, rtol=1e-15)
    assert model.graph.initializer[0].data_type == TensorProto.FLOAT, "the program's own model is not changed"


def test_erf_is_not_rounded_to_float32() -> None:
    x = np.array([0.3, -1.2], np.float32)
    model = model_of([helper.make_node("Erf", ["x"], ["y"])], [2], {})
    np.testing.assert_allclose(float64_of(model, x), [math.erf(value) for value in x], rtol=1e-15)


def test_erf_inside_of_gelu_is_not_rounded_either() -> None:
    x = np.array([0.3, -1.2], np.float32)
    model = model_of([helper.make_node("Gelu", ["x"], ["y"])], [2], {}, opset=20)
    expected = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(float64_of(model, x), expected, rtol=1e-14)


@pytest.mark.parametrize("opset", [9, 17])
def test_batch_norm_uses_the_given_statistics(opset: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1, 3, 4, 4)).astype(np.float32)
    weights = {name: generator.uniform(0.5, 2, 3).astype(np.float32) for name in ("s", "b", "m", "v")}
    node = helper.make_node("BatchNormalization", ["x", *weights], ["y"], epsilon=2.0**-10)
    model = model_of([node], [1, 3, 4, 4], weights, opset)
    scale, bias, mean, variance = (torch.from_numpy(array).double() for array in weights.values())
    expected = torch.nn.functional.batch_norm(torch.from_numpy(x).double(), mean, variance, scale, bias, eps=2.0**-10)
    np.testing.assert_allclose(float64_of(model, x), expected.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [3, 5])
def test_local_response_norm_covers_all_channels(size: int) -> None:
    x = np.random.default_rng(0).standard_normal((1, 7, 2, 2)).astype(np.float32)
    node = helper.make_node("LRN", ["x"], ["y"], size=size, alpha=1.0, beta=0.75, bias=2.0)
    expected = torch.nn.functional.local_response_norm(torch.from_numpy(x).double(), size, 1.0, 0.75, 2.0)
    np.testing.assert_allclose(float64_of(model_of([node], [1, 7, 2, 2], {}), x), expected.numpy(), rtol=1e-12)


def test_check_of_a_model_in_memory() -> None:
    weights = {"w": np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)}
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"])], [1, 4, 9, 9], weights)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 7, 7]))
    report = check(model, [np.random.default_rng(1).standard_normal((1, 4, 9, 9)).astype(np.float32)])
    assert report.passed
    assert report.outputs[0].verdict.to_eager.sqnr_db > 100


def test_a_reference_far_from_eager_excuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"w": np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)}
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"])], [1, 4, 9, 9], weights)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 7, 7]))
    wrong: dict[str, Array] = {"y": np.ones((1, 8, 7, 7))}
    monkeypatch.setattr("lowerkit.parity.references.onnx_nodes.onnx_float64_values", lambda *_: wrong)
    report = check(model, [np.random.default_rng(1).standard_normal((1, 4, 9, 9)).astype(np.float32)])
    assert all(row.verdict.to_float64 is None for row in [*report.outputs, *report.ops])


def bfloat16_chain(length: int) -> tuple[onnx.ModelProto, Array]:
    """A chain of Erf and Mul in bf16: rounding adds up, as in a deep model."""
    nodes: list[onnx.NodeProto] = []
    for number in range(length):
        nodes.append(helper.make_node("Erf", [f"v{number}" if number else "x"], [f"e{number}"]))
        nodes.append(helper.make_node("Mul", [f"e{number}", "w"], [f"v{number + 1}"]))
    nodes.append(helper.make_node("Identity", [f"v{length}"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [64])],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [64])],
        [numpy_helper.from_array(np.full(64, 1.12, ml_dtypes.bfloat16), "w")],
    )
    x = np.random.default_rng(3).standard_normal(64).astype(ml_dtypes.bfloat16)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), x


def test_a_right_evaluator_is_confirmed_however_far_rounding_goes() -> None:
    model, x = bfloat16_chain(40)
    program: Any = SimpleNamespace(onnx_model=model)
    values = onnx_float64_values(program, [x])
    assert {f"e{number}" for number in range(40)} < values.keys()
    assert model.graph.initializer[0].data_type == TensorProto.BFLOAT16, "the program's own model is not changed"


def test_a_wrong_evaluator_is_no_reference_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of 1 % stay far above 10 dB to what bf16 computes, and would explain any rounding."""
    monkeypatch.setattr(math, "erf", lambda value, erf=math.erf: 1.01 * erf(value))
    model, x = bfloat16_chain(2)
    program: Any = SimpleNamespace(onnx_model=model)
    assert onnx_float64_values(program, [x]).keys().isdisjoint({"e0", "v1", "e1", "v2", "y"})
