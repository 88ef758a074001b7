"""Look-ups of ONNX: an index from -size to size - 1, whatever the op; each part of a tuple has an extent of its own."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.compiler import Compiled, compile_program
from lowerkit.errors import CaptureError, RuntimeFault

Array = np.ndarray[Any, Any]

X = np.arange(24, dtype=np.float32).reshape(4, 6)

_PAIR = np.array([[0, 1], [3, 2]])
INDICES: dict[str, tuple[str, Array, int, dict[str, int]]] = {
    "gather": ("Gather", np.array([0, 3]), 4, {}),
    "gather_second": ("Gather", np.array([[5, 0]]), 6, {"axis": -1}),
    "elements": ("GatherElements", _PAIR, 4, {"axis": 0}),
    "tuples": ("GatherND", _PAIR, 6, {}),
    "batches": ("GatherND", np.array([[0], [3], [1], [2]]), 6, {"batch_dims": 1}),
    "scatter": ("ScatterElements", _PAIR, 6, {"axis": 1}),
    "scatter_tuples": ("ScatterND", _PAIR, 6, {}),
    "scatter_rows": ("ScatterND", np.array([[0], [2]]), 4, {}),
}
"""Op, indices, the extent that the last of them is into, attributes."""


_RANKS = {"gather_second": 3, "tuples": 1, "batches": 1}
"""Of the results that are no matrix."""


def _model(rows: int | str) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 6])]
    nodes: list[onnx.NodeProto] = []
    outputs: list[onnx.ValueInfoProto] = []
    constants: list[onnx.TensorProto] = []
    for name, (op_type, indices, _, attributes) in INDICES.items():
        inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, indices.shape))
        operands = ["x", name]
        if op_type.startswith("Scatter"):
            shape = (2, 6) if name == "scatter_rows" else (2,) if op_type == "ScatterND" else indices.shape
            constants.append(onnx.numpy_helper.from_array(np.full(shape, -1, np.float32), f"{name}_new"))
            operands.append(f"{name}_new")
        node = helper.make_node(op_type, operands, [f"{name}_y"], name=f"/layer/{name}")
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        nodes.append(node)
        outputs.append(helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [None] * _RANKS.get(name, 2)))
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@cache
def _compiled() -> Compiled:
    return compile_program(capture_onnx(_model(4)))


def _refused(inputs: list[Array]) -> RuntimeFault | None:
    try:
        _compiled().session.run(*inputs)
    except RuntimeFault as fault:
        return fault
    return None


@pytest.mark.parametrize("name", INDICES)
def test_every_op(name: str) -> None:
    op_type, indices, extent, _ = INDICES[name]
    place = 1 + list(INDICES).index(name)
    program = _compiled().program
    assert program.eager is not None
    for value in (0, extent - 1, -1, -extent):
        inputs = [X, *(entry[1].copy() for entry in INDICES.values())]
        inputs[place].flat[-1] = value
        found, expected = _compiled().session.run(*inputs), program.eager(*inputs)
        np.testing.assert_array_equal(found[place - 1], expected[place - 1])
    for value in (extent, -extent - 1, 2**63 - 1, -(2**63)):
        inputs = [X, *(entry[1].copy() for entry in INDICES.values())]
        inputs[place].flat[-1] = value
        fault = _refused(inputs)
        assert fault is not None, value
        assert fault.code == "LK8015"
        assert f"index {value} of {op_type} is out of range for a dimension of size {extent}" in fault.message
        assert f"element {indices.size - 1} of the indices" in fault.message


def test_parts_of_tuples_have_extents_of_their_own() -> None:
    """(3, 5) is the last element; (4, 0) is none, and (0, 6) neither, though (1, 0) lies where it would."""
    for name in ("tuples", "scatter_tuples"):
        place = 1 + list(INDICES).index(name)
        for row, column, inside in ((3, 5, True), (-4, -6, True), (4, 0, False), (5, 3, False), (0, 6, False)):
            inputs = [X, *(entry[1].copy() for entry in INDICES.values())]
            inputs[place][1] = row, column
            assert (_refused(inputs) is None) == inside, (name, row, column)


def test_an_extent_of_a_call() -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Gather", ["x", "i"], ["y"], name="look")],
            "graph",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3]),
                helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    session = compile_program(capture_onnx(model)).session
    for rows in (2, 5):
        x = np.random.default_rng(0).random((rows, 3), np.float32)
        good = np.array([-rows, rows - 1])
        np.testing.assert_array_equal(session.run(x, good)[0], x[good])
        for value in (rows, -rows - 1):
            with pytest.raises(RuntimeFault, match=f"index {value} of Gather is out of range .* size {rows}"):
                session.run(x, np.array([0, value]))


def test_constants_in_range_are_not_checked() -> None:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"], name="look", axis=1)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])],
        [onnx.numpy_helper.from_array(np.array([2, -1, 0]), "i")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    steps = compile_program(capture_onnx(model)).parts.program.steps
    assert all(step.check is None for step in steps)


def test_an_axis_that_is_not_there_is_named() -> None:
    """PyTorch's exporter makes such models of ``logspace`` with one step; ONNX's checker lets them pass."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])]
    first = onnx.numpy_helper.from_array(np.array([0]), "first")
    node = helper.make_node("GatherElements", ["x", "first"], ["y"], name="/layer/first", axis=0)
    graph = helper.make_graph([node], "graph", inputs, outputs, [first])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(CaptureError, match=r"indexes axis 0 of 'x', which has 0 axes") as error:
        capture_onnx(model)
    assert error.value.code == "LK2003"
    assert "/layer/first" in str(error.value)
