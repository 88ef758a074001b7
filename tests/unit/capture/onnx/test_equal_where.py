"""ONNX's Equal and Where of values that may be one value, and outputs that are constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import lowerkit

NAN = float("nan")
Node = tuple[str, list[str], list[str]] | tuple[str, list[str], list[str], dict[str, Any]]

CASES: dict[str, list[Node]] = {
    # nodes over x [3], c [2, 1] and the numbers k [] and m [1]; what is named y is the output
    "equal to itself": [("Equal", ["x", "x"], ["y"])],
    "equal to its copy": [("Identity", ["x"], ["z"]), ("Equal", ["x", "z"], ["y"])],
    "unequal": [("Equal", ["x", "x"], ["e"]), ("Not", ["e"], ["y"])],
    "computed twice": [("Neg", ["x"], ["a"]), ("Neg", ["x"], ["b"]), ("Equal", ["a", "b"], ["y"])],
    "NaN replaced": [("Equal", ["x", "x"], ["e"]), ("Where", ["e", "x", "k"], ["y"])],
    "equal numbers": [("Equal", ["x", "k"], ["y"])],
    "choice of itself": [("Where", ["c", "x", "x"], ["y"])],
    "choice of its copy": [("Identity", ["x"], ["z"]), ("Where", ["c", "x", "z"], ["y"])],
    "choice of one number": [("Where", ["c", "k", "k"], ["y"])],
    "choice of one number, used": [("Where", ["c", "m", "m"], ["w"]), ("Add", ["w", "k"], ["y"])],
    "computed twice, chosen": [("Neg", ["x"], ["a"]), ("Neg", ["x"], ["b"]), ("Where", ["c", "a", "b"], ["y"])],
    "a choice": [("Neg", ["x"], ["a"]), ("Where", ["c", "a", "x"], ["y"])],
}


def model_of(nodes: list[Node], rows: int | str = 2) -> onnx.ModelProto:
    made = [helper.make_node(op, inputs, outputs, **dict(*rest)) for op, inputs, outputs, *rest in nodes]
    given = {"x": (TensorProto.FLOAT, [3]), "c": (TensorProto.BOOL, [rows, 1])}
    used = {name for node in made for name in node.input}
    graph = helper.make_graph(
        made,
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in given.items() if name in used],
        [onnx.ValueInfoProto(name="y")],
        [
            numpy_helper.from_array(np.array(-2.5, np.float32), "k"),
            numpy_helper.from_array(np.array([1.0], np.float32), "m"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


@pytest.mark.parametrize("rows", [2, "n"])
@pytest.mark.parametrize("name", CASES)
def test_values_that_may_be_one_value(name: str, rows: int | str) -> None:
    model = model_of(CASES[name], rows)
    inputs = {
        "x": np.array([1.5, NAN, -0.0], np.float32),
        "c": np.array([[True], [False]]),
    }
    feeds = {value.name: inputs[value.name] for value in model.graph.input}
    expected: Any = ReferenceEvaluator(model).run(None, feeds)
    found: Any = lowerkit.compile(model)(*feeds.values())
    np.testing.assert_array_equal(found, expected[0], strict=True)


@pytest.mark.parametrize("step", [1, 2, 3, -1, -3])
@pytest.mark.parametrize("rank", [1, 4, 7])
def test_a_slice_of_a_shape_is_an_output(rank: int, step: int) -> None:
    """torch-mlir's folding of such a slice read beyond the shape."""
    shape = [2, 3, 4, 5, 6, 7, 8][:rank]
    numbers = {"starts": [0 if step > 0 else 99], "ends": [99 if step > 0 else -99], "axes": [0], "steps": [step]}
    graph = helper.make_graph(
        [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Slice", ["s", *numbers], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [None])],
        [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found: Any = lowerkit.compile(model)(np.zeros(shape, np.float32))
    np.testing.assert_array_equal(found, np.array(shape, np.int64)[::step], strict=True)
