"""ONNX nodes that torch-mlir converts wrongly in forms that models seldom have: written otherwise, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lowerkit
from lowerkit.errors import UnsupportedError
from tests.unit.capture.onnx.one_node_models import by_onnxruntime, by_reference, one_node, ours

Array = np.ndarray[Any, Any]


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(np.random.default_rng(len(shape)).standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize(
    "shapes",
    [
        [(3,), (3,), (2, 3)], [(1,), (1,), (4,)], [(3,), (1,), (2, 3)], [(), (1,), (2, 1), (3,)], [(2, 3), (1,), (3,)],
        [(3, 1), (1, 4), (2, 1, 1)], [(3,), (2, 3)], [(3,)],
    ],
    ids=str,
)  # fmt: skip
def test_several_operands_that_grow(op: str, shapes: Sequence[tuple[int, ...]]) -> None:
    inputs = {f"x{number}": np.asarray(normal(*shape) + number, np.float32) for number, shape in enumerate(shapes)}
    model = one_node(op, inputs)
    (found,), (expected,) = ours(model, list(inputs.values())), by_onnxruntime(model, list(inputs.values()))
    np.testing.assert_allclose(found, expected, rtol=3e-7, strict=True)


def test_a_maximum_of_three_integers() -> None:
    inputs = {"a": np.array([5]), "b": np.array([2]), "c": np.array([1, 6, 3])}
    (found,) = ours(one_node("Max", inputs), list(inputs.values()))
    np.testing.assert_array_equal(found, [5, 6, 5])


@pytest.mark.parametrize("opset", [1, 11, 12, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_hardmax_of_a_matrix_or_along_an_axis(opset: int, axis: int | None) -> None:
    x = normal(2, 3, 4)
    model = one_node("Hardmax", {"x": x}, opset=opset)
    if axis is not None:
        model.graph.node[0].attribute.append(helper.make_attribute("axis", axis))
    if opset == 1:
        model.ir_version = 3
    (found,), (expected,) = [np.asarray(lowerkit.compile(model)(x))], by_onnxruntime(model, [x])
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_powers_of_integers_are_cut(kind: Any) -> None:
    inputs = {"x": np.array([2, 3, 5, 7], kind), "y": np.array([2.5, 0.5, -1.0, 1.0], np.float32)}
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    values = [
        helper.make_tensor_value_info("x", code, [4]), helper.make_tensor_value_info("y", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("z", code, [4]),
    ]  # fmt: skip
    graph = helper.make_graph([helper.make_node("Pow", ["x", "y"], ["z"])], "graph", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    np.testing.assert_array_equal(ours(model, list(inputs.values()))[0], by_reference(model, list(inputs.values()))[0])


def test_shrunk_integers_are_cut() -> None:
    x = np.arange(-4, 5, dtype=np.int32)
    model = one_node("Shrink", {"x": x}, lambd=1.5, bias=1.5)
    np.testing.assert_array_equal(ours(model, [x])[0], by_reference(model, [x])[0], strict=True)


REFUSED: dict[str, tuple[str, list[int | str], dict[str, Any]]] = {
    "mean": ("AveragePool", [1, 2, "n"], {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_UPPER"}),
    "maximum": ("MaxPool", [1, 2, 5, "n"], {"kernel_shape": [3, 2], "strides": [1, 2], "auto_pad": "SAME_LOWER"}),
}


def over_open_extents(name: str) -> onnx.ModelProto:
    op, shape, attributes = REFUSED[name]
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["z"], **attributes), helper.make_node("Cast", ["z"], ["w"], to=TensorProto.FLOAT),
         helper.make_node("ReduceSum", ["w"], ["y"], keepdims=0)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", REFUSED)
def test_what_follows_from_open_extents_is_refused(name: str) -> None:
    model = over_open_extents(name)
    with pytest.raises(UnsupportedError, match=r"LK4001(.|\n)*not static"):
        lowerkit.compile(model)
    shape = [5 if isinstance(extent, str) else extent for extent in REFUSED[name][1]]
    x = normal(*shape)
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    fixed.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
    np.testing.assert_allclose(ours(fixed, [x])[0], by_onnxruntime(fixed, [x])[0], rtol=1e-5)


def test_a_transposed_convolution_to_a_given_size() -> None:
    inputs = {"x": normal(1, 1, 3)}
    model = one_node("ConvTranspose", inputs, {"w": normal(1, 1, 4)}, strides=[2], output_shape=[6])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "n"
    with pytest.raises(UnsupportedError, match=r"LK4001(.|\n)*the padding of ConvTranspose"):
        lowerkit.compile(model)
