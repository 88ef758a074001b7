"""Elementwise ONNX nodes, reductions and running sums compute what ONNX Runtime, or ONNX's own evaluator, computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from lowerkit.errors import UnsupportedError
from tests.support.suite.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import assert_close, by_onnxruntime, by_reference, normal, one_node, ours


@pytest.mark.parametrize("attributes", [{}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumulative_products_and_integer_sums(axis: int, attributes: dict[str, Any]) -> None:
    numbers = RANDOM.integers(-3, 4, (3, 7)).astype(np.int32)
    for op_type, x, opset in (("CumProd", normal(3, 7), 26), ("CumProd", numbers, 26), ("CumSum", numbers, 14)):
        model = one_node(op_type, {"x": x}, {"axis": np.array(axis)}, opset=opset, **attributes)
        assert_close(ours(model, [x]), by_reference(model, [x]), 0 if x.dtype == np.int32 else 3e-6)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 3, 3), (2, 3, 4, 4)])
def test_determinant(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    model = one_node("Det", {"x": x}, opset=11)
    assert_close(ours(model, [x]), [np.linalg.det(x.astype(np.float64)).astype(np.float32)], 1e-5)


@pytest.mark.parametrize("bounds", [(1, 9, 3), (5, -4, -2), (3, 3, 1), (0.5, 2.0, 0.3)])
def test_constant_range(bounds: tuple[float, float, float]) -> None:
    dtype = np.int64 if isinstance(bounds[0], int) else np.float32
    names = ("start", "limit", "step")
    constants = {name: np.array(bound, dtype) for name, bound in zip(names, bounds, strict=True)}
    model = one_node("Range", {}, constants, opset=11)
    assert_close(ours(model, []), by_reference(model, []))


def test_dropout_outside_of_training_keeps_everything() -> None:
    x = normal(3, 4)
    model = one_node("Dropout", {"x": x}, outputs=["y", "mask"], opset=13)
    assert_close(ours(model, [x]), [x, np.ones((3, 4), np.bool_)], 0)


def test_dropout_in_training_is_refused() -> None:
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    model = one_node("Dropout", {"x": normal(3, 4)}, constants, opset=13)
    with pytest.raises(UnsupportedError):
        ours(model, [normal(3, 4)])


TRAINING: dict[str, tuple[int, dict[str, Any]]] = {
    "Adagrad": (1, {"decay_factor": 0.1, "epsilon": 1e-5, "norm_coefficient": 0.01}),
    "Adam": (2, {"alpha": 0.8, "beta": 0.99, "epsilon": 1e-2, "norm_coefficient": 0.01, "norm_coefficient_post": 0.1}),
    "Momentum": (1, {"alpha": 0.8, "beta": 0.3, "mode": "nesterov", "norm_coefficient": 0.01}),
}


@pytest.mark.parametrize("op_type", TRAINING)
@pytest.mark.parametrize("count", [0, 3])
def test_one_step_of_an_optimizer(op_type: str, count: int) -> None:
    states, fields = TRAINING[op_type]
    inputs = {"rate": np.array(0.1, np.float32), "count": np.array(count)}
    for group in ["x", "g", *[f"s{index}" for index in range(states)]]:
        for index, shape in enumerate([(2, 3), (4,)]):
            inputs[f"{group}{index}"] = np.abs(normal(*shape))
    outputs = [f"y{index}" for index in range(2 * (1 + states))]
    model = one_node(op_type, inputs, outputs=outputs, domain="ai.onnx.preview.training", **fields)
    for output, name in zip(model.graph.output, [*list(inputs)[2:4], *list(inputs)[6:]], strict=True):
        shape = inputs[name].shape
        output.type.tensor_type.elem_type = TensorProto.FLOAT
        output.type.tensor_type.shape.SetInParent()
        for extent in shape:
            output.type.tensor_type.shape.dim.add().dim_value = extent
    assert_close(ours(model, list(inputs.values())), by_reference(model, list(inputs.values())), 1e-5)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_sign_of_nan(kind: type[Any]) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, -3], kind)
    model = one_node("Sign", {"x": x})
    assert_close(ours(model, [x]), by_reference(model, [x]), 0.0)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int32, np.uint8, np.int64])
@pytest.mark.parametrize("order", [["x", "low"], ["x", "", "high"], ["x", "low", "high"]])
@pytest.mark.parametrize("constant", [False, True])
def test_clip_keeps_nan(constant: bool, order: list[str], kind: type[Any]) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.5, 7, -3], np.float32)
    x = x.astype(kind) if kind in (np.float32, np.float16) else np.array([0, 1, 2, 3, 9, 100], kind)
    given = {name: np.array(1 if name == "low" else 3, kind) for name in order[1:] if name}
    model = one_node("Clip", {"x": x, **({} if constant else given)}, given if constant else {}, order=order, opset=17)
    inputs = [x] if constant else [x, *given.values()]
    assert_close(ours(model, inputs), by_reference(model, inputs), 0.0)


def test_thresholded_relu_of_nan() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.5, 1.0, -1.0], np.float32)
    model = one_node("ThresholdedRelu", {"x": x}, alpha=0.5)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0.0)


@pytest.mark.parametrize("reverse", [0, 1])
def test_exclusive_sums_over_an_infinity(reverse: int) -> None:
    x = np.array([[1.0, 2.0, np.inf, 3.0], [1.0, np.nan, 2.0, 3.0]], np.float32)
    model = one_node("CumSum", {"x": x}, {"axis": np.array(-1)}, exclusive=1, reverse=reverse)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0.0)


def test_prelu_with_a_slope_for_each_element() -> None:
    x, slope = normal(1, 5, 5), normal(1, 5, 5)
    model = one_node("PRelu", {"x": x, "slope": slope}, opset=16)
    assert_close(ours(model, [x, slope]), by_onnxruntime(model, [x, slope]))


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_logarithms_of_sums_that_overflow(opset: int, keepdims: int) -> None:
    x = normal(3, 4, 5) * 1000
    x[0, 0], x[1, 1, 0], x[2, 2, 2] = -np.inf, np.inf, np.nan
    constants = {} if opset == 13 else {"axes": np.array([2, -2])}
    attributes: dict[str, Any] = {"axes": [2, -2]} if opset == 13 else {}
    model = one_node("ReduceLogSumExp", {"x": x}, constants, opset=opset, keepdims=keepdims, **attributes)
    wide = x.astype(np.float64)
    largest = wide.max((1, 2), keepdims=True)
    shift = np.where(np.isinf(largest), 0, largest)
    expected = np.log(np.exp(wide - shift).sum((1, 2), keepdims=True)) + shift
    assert_close(ours(model, [x]), [(expected if keepdims else expected[:, 0, 0]).astype(np.float32)])
    x = normal(3, 4).astype(np.float16) * 10
    model = one_node("ReduceLogSumExp", {"x": x}, opset=18, keepdims=keepdims)
    assert_close(ours(model, [x]), by_reference(model, [x]), 1e-2)


@pytest.mark.parametrize("axes", [None, [1], [0, 2]])
def test_norms_of_float64(axes: list[int] | None) -> None:
    x = normal(2, 3, 4).astype(np.float64)
    constants = {} if axes is None else {"axes": np.array(axes)}
    model = one_node("ReduceL2", {"x": x}, constants, keepdims=0)
    wanted = np.sqrt((x**2).sum(None if axes is None else tuple(axes)))
    np.testing.assert_allclose(ours(model, [x])[0], wanted, rtol=1e-14)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 1.5}, {"gamma": 0.5}])
def test_defaults_of_selu(attributes: dict[str, Any]) -> None:
    x = normal(3, 4)
    model = one_node("Selu", {"x": x}, **attributes)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 3e-7)


@pytest.mark.parametrize(("op_type", "attributes"), [("HardSwish", {}), ("Gelu", {"approximate": "tanh"})])
def test_constants_of_the_standard_are_float32(op_type: str, attributes: dict[str, Any]) -> None:
    x = RANDOM.standard_normal((3, 4))
    model = one_node(op_type, {"x": x}, **attributes)
    assert_close(ours(model, [x]), by_reference(model, [x]), 1e-13)


@pytest.mark.parametrize(("opset", "axis"), [(6, 1), (9, -1)])
def test_slopes_are_of_channels_in_old_opsets(opset: int, axis: int) -> None:
    x, slope = normal(2, 3, 3), np.array([0.5, -2.0, 3.0], np.float32)
    model = one_node("PRelu", {"x": x}, {"slope": slope}, opset=opset)
    along = slope.reshape((3, 1) if axis == 1 else (3,))
    assert_close(ours(model, [x]), [np.where(x < 0, x * along, x)], 1e-6)
