"""What an ONNX model declares of computed values is a hint: its nodes say what is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import lowerkit
from lowerkit.capture.onnx.capture import capture_onnx

X = np.linspace(-1, 1, 6, dtype=np.float32)


def model_of(declared: list[Any], between: list[Any] | None = None) -> ModelProto:
    """``Neg(Unsqueeze(x))`` of a number, whose result has one dim of one element; ``declared`` is what it states."""
    nodes = [helper.make_node("Unsqueeze", ["x", "axes"], ["m"]), helper.make_node("Neg", ["m"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, declared)],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
        value_info=[] if between is None else [helper.make_tensor_value_info("m", TensorProto.FLOAT, between)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(
    ("declared", "between", "told"),
    [
        ([6], None, ["'y' as [6]"]),
        ([1, 6], None, ["'y' as [1, 6]"]),
        ([7, 1], [7, 1], ["'m' as [7, 1]", "'y' as [7, 1]"]),
        (["n", 1, 1], None, ["'y' as [n, 1, 1]"]),
        ([6, 1], [1, 6], ["'m' as [1, 6]"]),
    ],
)
def test_the_nodes_are_followed_and_it_is_said(declared: list[Any], between: list[Any] | None, told: list[str]) -> None:
    model = model_of(declared, between)
    remarks = capture_onnx(model).remarks
    assert len(remarks) == len(told)
    for remark, part in zip(remarks, told, strict=True):
        assert part in remark
        assert "compute [6, 1]" in remark
    found: Any = lowerkit.compile(model)(X)
    np.testing.assert_array_equal(found, -X[:, None])


@pytest.mark.parametrize("declared", [[6, 1], ["n", 1], [None, "m"]])
def test_nothing_is_said_of_what_agrees(declared: list[Any]) -> None:
    assert capture_onnx(model_of(declared, declared)).remarks == []
