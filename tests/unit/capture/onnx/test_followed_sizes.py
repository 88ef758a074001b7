"""What an ONNX graph computes from shapes is read as sizes, however it is written: no tensor of them is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.errors import UnsupportedError
from tests.unit.capture.onnx.one_node_models import Array, normal, one_node, ours
from tests.unit.capture.running import op_counts, run_program

CONSTANTS: dict[str, Array] = {
    "zero": np.array(0), "first": np.array([0]), "one": np.array([1]), "two": np.array([2]), "rest": np.array([-1]),
    "none": np.array([-1, -1]), "sizes": np.array([3, 1]),
}  # fmt: skip


def model_of(nodes: Sequence[onnx.NodeProto], outputs: dict[str, list[int | str | None]]) -> onnx.ModelProto:
    """Returns a model of x f32[n, 4] that reads what it needs of ``CONSTANTS``."""
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)


SHAPE = [node("Shape", "x", "shape"), node("Gather", "shape zero", "n"), node("Unsqueeze", "n first", "rows")]
TARGETS = {
    "gathered": [*SHAPE, node("Concat", "rows two two", "target", axis=0)],
    "sliced": [
        node("Shape", "x", "shape"),
        node("Slice", "shape first one", "rows"),
        node("Concat", "rows two two", "target", axis=0),
    ],
    "part_of_the_shape": [
        node("Shape", "x", "rows", start=0, end=1),
        node("Concat", "rows two two", "target", axis=0),
    ],
    "computed": [
        *SHAPE,
        node("Mul", "rows two", "twice"),
        node("Div", "twice two", "again"),
        node("Concat", "again two two", "target", axis=0),
    ],
    "chosen": [
        *SHAPE,
        node("Concat", "rows two two", "given", axis=0),
        node("Equal", "given rest", "is_rest"),
        node("Where", "is_rest one given", "target"),
    ],
    "converted": [
        *SHAPE,
        node("Cast", "rows", "narrow", to=TensorProto.INT32),
        node("Cast", "narrow", "wide", to=TensorProto.INT64),
        node("Concat", "wide two two", "target", axis=0),
    ],
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_reshape_reads_sizes(name: str) -> None:
    nodes = [*TARGETS[name], node("Reshape", "x target", "y")]
    program = capture_onnx(model_of(nodes, {"y": ["n", 2, 2]}))
    counts = op_counts(program)
    assert not {op for op in counts if "NumToTensor" in op or "Int.Tensor" in op or op == "torch.aten.cat"}
    x = normal(3, 4)
    np.testing.assert_array_equal(run_program(program, [x])[0], x.reshape(3, 2, 2))


def test_sizes_that_are_read_as_numbers_are_a_tensor() -> None:
    nodes = [*SHAPE, node("Cast", "rows", "count", to=TensorProto.FLOAT), node("Div", "x count", "y")]
    x = normal(3, 4)
    found = run_program(capture_onnx(model_of(nodes, {"y": ["n", 4]})), [x])[0]
    np.testing.assert_array_equal(found, x / np.float32(3))


def test_the_whole_size_is_a_product() -> None:
    nodes = [
        node("Size", "x", "count"),
        node("Unsqueeze", "count first", "length"),
        node("Reshape", "x length", "flat"),
        node("Relu", "flat", "y"),
    ]
    x = normal(3, 4)
    found = run_program(capture_onnx(model_of(nodes, {"y": ["4*n"]})), [x])[0]
    np.testing.assert_array_equal(found, np.maximum(x, 0).reshape(-1))


def test_a_node_that_no_rule_takes_is_named_with_the_reason() -> None:
    x, axes = normal(2, 3), np.array([1])
    model = one_node("ReduceSum", {"x": x, "axes": axes}, keepdims=1)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 1]))
    with pytest.raises(UnsupportedError) as caught:
        ours(model, [x, axes])
    (detail,) = caught.value.details
    assert detail.startswith("ReduceSum (node 'node') on (vtensor<[2,3],f32>, vtensor<[1],si64>): ")
    assert "operand 1 of ReduceSum is not a constant" in detail
