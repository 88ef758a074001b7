"""Products of quantized tensors and ONNX Runtime's own quantized ops compute what ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.compiler import CompileOptions, lower_program
from lowerkit.errors import CaptureError
from tests.support.suite.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import Array, assert_close, by_onnxruntime, one_node, ours

BYTES = (np.uint8, np.int8)


def stored(dtype: type[Any], *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def scale(number: float, *shape: int) -> Array:
    return (RANDOM.uniform(0.7, 1.3, shape) * number).astype(np.float32)


def contributed(op_type: str, x: Mapping[str, Array], constants: Mapping[str, Array], **fields: Any) -> Any:
    """A node of ``com.microsoft``; the types of its results are those that ONNX Runtime gives."""
    model = one_node(op_type, x, constants, domain="com.microsoft", opset=17, **fields)
    (result,) = by_onnxruntime(model, list(x.values()))
    kind = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(result.dtype), result.shape)
    model.graph.output[0].type.CopyFrom(kind)
    return model


def assert_integer_products(model: Any, count: int) -> None:
    program = capture_onnx(model)
    lower_program(program, "canonical", CompileOptions())
    text = program.text()
    assert text.count("lk.integer_") == count, text
    assert "lk.matmul" not in text
    assert "lk.conv" not in text


def assert_within_one(model: Any, inputs: Sequence[Array], expected: Sequence[Array] | None = None) -> None:
    """Results are bytes: within 1 of ONNX Runtime's, and one of them beside a tie."""
    for have, want in zip(ours(model, inputs), expected or by_onnxruntime(model, inputs), strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        apart = np.abs(have.astype(np.int64) - want.astype(np.int64))
        assert apart.max() <= 1
        assert np.count_nonzero(apart) <= max(1, apart.size // 1000)
        assert np.unique(want).size > min(5, want.size // 4), "a constant result proves nothing"


@pytest.mark.parametrize("points", ["none", "one", "columns"])
@pytest.mark.parametrize("weight_type", BYTES)
@pytest.mark.parametrize("type_", BYTES)
def test_matmul_integer(type_: type[Any], weight_type: type[Any], points: str) -> None:
    x, constants = stored(type_, 2, 5, 13), {"w": stored(weight_type, 13, 9)}
    if points != "none":
        constants["xz"] = stored(type_)
        constants["wz"] = stored(weight_type, *((9,) if points == "columns" else ()))
    order = ["x", "w", *(["xz", "wz"] if points != "none" else [])]
    model = one_node("MatMulInteger", {"x": x}, constants, order=order, opset=17)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0)
    symmetric = points == "none" and weight_type is np.int8
    assert_integer_products(model, 1 if symmetric or not constants.get("wz", np.ones(1)).any() else 2)


def test_matmul_integer_with_a_point_at_run_time() -> None:
    x, point = stored(np.uint8, 7, 12), stored(np.uint8)
    model = one_node(
        "MatMulInteger", {"x": x, "xz": point}, {"w": stored(np.int8, 12, 5)}, order=["x", "w", "xz"], opset=17
    )
    assert_close(ours(model, [x, point]), by_onnxruntime(model, [x, point]), 0)
    assert_integer_products(model, 1)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "padded": ((2, 6, 9, 8), (5, 6, 3, 3), {"pads": [1, 0, 1, 1], "strides": [2, 1]}),
    "same": ((1, 4, 7, 8), (3, 4, 3, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "depthwise": ((1, 7, 6, 5), (7, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 7}),
    "one dimension": ((2, 3, 11), (4, 3, 4), {"dilations": [2]}),
    "same, nothing missing": ((1, 4, 6, 8), (3, 4, 2, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "one channel": ((1, 1, 6, 8), (1, 1, 3, 3), {"pads": [1, 1, 1, 1]}),
}


@pytest.mark.parametrize("weight_type", BYTES)
@pytest.mark.parametrize("computed", [False, True], ids=["constant", "computed"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv_integer(name: str, computed: bool, weight_type: type[Any]) -> None:
    image, filters, fields = CONVOLUTIONS[name]
    inputs = {"x": stored(np.uint8, *image)}
    constants = {"w": stored(weight_type, *filters), "wz": np.array(3, weight_type)}
    (inputs if computed else constants)["xz"] = stored(np.uint8)
    model = one_node("ConvInteger", inputs, constants, order=["x", "w", "xz", "wz"], opset=17, **fields)
    arrays = list(inputs.values())
    assert_close(ours(model, arrays), by_onnxruntime(model, arrays), 0)
    assert_integer_products(model, 2)


@pytest.mark.parametrize("lowest", [-3.0, 0.0, 1.0])
def test_dynamic_quantize_linear(lowest: float) -> None:
    x = RANDOM.uniform(lowest, 2.0, (6, 17)).astype(np.float32)
    model = one_node("DynamicQuantizeLinear", {"x": x}, outputs=["y", "scale", "point"], opset=17)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 0)
    zeros = np.zeros_like(x)
    assert_close(ours(model, [zeros]), by_onnxruntime(model, [zeros]), 0)


@pytest.mark.parametrize("channels", ["one scale", "columns"])
@pytest.mark.parametrize("type_", BYTES)
def test_qlinear_matmul(type_: type[Any], channels: str) -> None:
    each = () if channels == "one scale" else (21,)
    constants = {
        "xs": scale(0.02), "xz": stored(type_), "w": stored(np.int8, 37, 21), "ws": scale(0.01, *each),
        "wz": np.zeros(each, np.int8), "ys": scale(0.2), "yz": np.array(7, type_),
    }  # fmt: skip
    x = stored(type_, 60, 37)
    model = one_node("QLinearMatMul", {"x": x}, constants, opset=17)
    assert_within_one(model, [x])
    assert_integer_products(model, 1)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", ["padded", "depthwise"])
def test_qlinear_conv(name: str, last: bool) -> None:
    image, filters, fields = CONVOLUTIONS[name]
    outputs = filters[0]
    constants = {
        "xs": scale(0.02), "xz": stored(np.uint8), "w": stored(np.int8, *filters), "ws": scale(0.01, outputs),
        "wz": np.zeros(outputs, np.int8), "ys": scale(0.1), "yz": np.array(120, np.uint8),
        "b": RANDOM.integers(-900, 900, outputs).astype(np.int32),
    }  # fmt: skip
    x = stored(np.uint8, *image)
    model = one_node("QLinearConv", {"x": x}, constants, opset=17, **fields)
    expected = by_onnxruntime(model, [x])
    if last:  # ONNX Runtime's own kernel for it saturates at 16 bits where the machine has no VNNI
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        model = contributed("QLinearConv", {"x": x}, constants, channels_last=1, **fields)
        expected = [np.moveaxis(value, 1, -1) for value in expected]
    assert_within_one(model, [x], expected)
    assert_integer_products(model, 1)


def pair(prefix: str, type_: type[Any], number: float) -> Mapping[str, Array]:
    return {f"{prefix}s": scale(number), f"{prefix}z": stored(type_)}


CONTRIBUTED: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "QLinearAdd": (("a", "as", "az", "b", "bs", "bz", "ys", "yz"), {}),
    "QLinearMul": (("a", "as", "az", "b", "bs", "bz", "ys", "yz"), {}),
    "QLinearSigmoid": (("a", "as", "az", "ss", "sz"), {}),
    "QLinearLeakyRelu": (("a", "as", "az", "ys", "yz"), {"alpha": 0.1}),
    "QLinearGlobalAveragePool": (("a", "as", "az", "ps", "pz"), {}),
    "QLinearAveragePool": (("a", "as", "az", "ps", "pz"), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0]}),
    "QLinearConcat": (("ys", "yz", "a", "as", "az", "b", "bs", "bz"), {"axis": 1}),
}


@pytest.mark.parametrize("type_", BYTES)
@pytest.mark.parametrize("op_type", CONTRIBUTED)
def test_ops_of_onnxruntime(op_type: str, type_: type[Any]) -> None:
    order, fields = CONTRIBUTED[op_type]
    middle = np.array(0 if type_ is np.int8 else 128, type_)
    inputs = {name: stored(type_, 3, 64, 6, 7) for name in ("a", "b") if name in order}
    constants = {
        **pair("a", type_, 0.02), **pair("b", type_, 0.03), "ys": scale(0.04), "yz": middle,
        "ps": scale(0.01), "pz": middle, "ss": np.array(1 / 256, np.float32),
        "sz": np.array(np.iinfo(type_).min, type_),
    }  # fmt: skip
    constants = {name: array for name, array in constants.items() if name in order}
    if op_type == "QLinearGlobalAveragePool":
        constants["az"] = middle
    model = contributed(op_type, inputs, constants, order=order, **fields)
    assert_within_one(model, list(inputs.values()))


@pytest.mark.parametrize("channels_last", [0, 1])
def test_a_global_average_pool_of_either_layout(channels_last: int) -> None:
    constants = {**pair("a", np.uint8, 0.02), "ys": scale(0.01), "yz": np.array(128, np.uint8)}
    constants["az"] = np.array(128, np.uint8)
    x = stored(np.uint8, 2, 5, 6, 70)
    model = contributed("QLinearGlobalAveragePool", {"x": x}, constants, channels_last=channels_last)
    assert_within_one(model, [x])


@pytest.mark.parametrize("across", [0, 1])
@pytest.mark.parametrize("quantized", [True, False])
def test_qgemm(quantized: bool, across: int) -> None:
    constants = {
        "xs": scale(0.02), "xz": stored(np.uint8), "w": stored(np.int8, *((11, 30) if across else (30, 11))),
        "ws": scale(0.01, 11), "wz": np.zeros(11, np.int8), "b": RANDOM.integers(-900, 900, 11).astype(np.int32),
    }  # fmt: skip
    if quantized:
        constants |= {"ys": scale(0.2), "yz": np.array(120, np.uint8)}
    x = stored(np.uint8, 40, 30)
    model = contributed("QGemm", {"x": x}, constants, transB=across, alpha=1.0)
    if quantized:
        assert_within_one(model, [x])
    else:
        assert_close(ours(model, [x]), by_onnxruntime(model, [x]))
    assert_integer_products(model, 1)


@pytest.mark.parametrize("weight_type", BYTES)
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_integer_to_float(bias: bool, weight_type: type[Any]) -> None:
    constants = {
        "w": stored(weight_type, 22, 9), "xs": scale(0.02), "ws": scale(0.01, 9), "xz": stored(np.uint8),
        "wz": stored(weight_type, 9), "b": scale(1, 9),
    }  # fmt: skip
    x = stored(np.uint8, 3, 4, 22)
    order = ["x", "w", "xs", "ws", "xz", "wz", *(["b"] if bias else [])]
    model = contributed("MatMulIntegerToFloat", {"x": x}, constants, order=order)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]))
    assert_integer_products(model, 2)


@pytest.mark.parametrize("full", [False, True])
def test_dynamic_quantize_matmul(full: bool) -> None:
    constants = {"w": stored(np.int8, 22, 9), "ws": scale(0.01, *((9,) if full else ()))}
    order = ["x", "w", "ws"]
    if full:
        constants |= {"wz": np.zeros(9, np.int8), "b": scale(1, 9)}
        order += ["wz", "b"]
    x = RANDOM.standard_normal((5, 22)).astype(np.float32)
    model = contributed("DynamicQuantizeMatMul", {"x": x}, constants, order=order)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]))
    assert_integer_products(model, 1)


def test_a_scale_that_is_none_is_refused_here_too() -> None:
    constants = {**pair("a", np.uint8, 0.02), **pair("y", np.uint8, 0.02)}
    constants["ys"] = np.array(0, np.float32)
    model = one_node("QLinearSigmoid", {"x": stored(np.uint8, 3)}, constants, domain="com.microsoft", opset=17)
    with pytest.raises(CaptureError, match="LK2003"):
        capture_onnx(model)
