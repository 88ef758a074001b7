"""ONNX nodes over tensors without elements: conversions must not divide by an extent of 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.capture.onnx.one_node_models import by_reference, one_node, ours

EMPTY = np.zeros((1, 3, 0), np.float32)
INTEGERS = {
    "two": np.array([2, 1, 1], np.int64),
    "last": np.array([2], np.int64),
    "none": np.array([], np.int64),
    "flat": np.array([0, 3, 0, 1], np.int64),
    "wide": np.array([2, 3, 0], np.int64),
    "pads": np.array([0, 1, 0, 0, 0, 0], np.int64),
    "after": np.array([0, 0, 1, 0, 0, 2], np.int64),
}

CASES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "Tile": ("Tile", ["x", "two"], {}),
    "Expand": ("Expand", ["x", "wide"], {}),
    "Reshape": ("Reshape", ["x", "flat"], {}),
    "Transpose": ("Transpose", ["x"], {"perm": [2, 0, 1]}),
    "Flatten": ("Flatten", ["x"], {"axis": 1}),
    "Squeeze": ("Squeeze", ["x"], {}),
    "Unsqueeze": ("Unsqueeze", ["x", "last"], {}),
    "Concat": ("Concat", ["x", "x"], {"axis": 1}),
    "Pad": ("Pad", ["x", "pads"], {}),
    "Pad of nothing": ("Pad", ["x", "after"], {}),
    "Slice": ("Slice", ["x", "none", "none"], {}),
    "Neg": ("Neg", ["x"], {}),
    "Add": ("Add", ["x", "x"], {}),
    "Softmax": ("Softmax", ["x"], {"axis": 1}),
    "Softmax over nothing": ("Softmax", ["x"], {"axis": 2}),
    "CumSum": ("CumSum", ["x", "axis"], {}),
    "Gather": ("Gather", ["x", "place"], {"axis": 1}),
    "Cast": ("Cast", ["x"], {"to": 7}),
    "MatMul": ("MatMul", ["x", "rows"], {}),
    "MatMul of nothing": ("MatMul", ["columns", "x"], {}),
    **{
        f"{op} {'over nothing' if axes == 'last' else 'of all'}": (op, ["x", axes], {"keepdims": 0})
        for op in ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd")
        for axes in ("last", "none")
    },
    **{f"{op} beside nothing": (op, ["x", "place"], {}) for op in ("ReduceMax", "ReduceMean", "ReduceLogSumExp")},
}
OPERANDS = {
    "x": EMPTY,
    "place": np.array([1], np.int64),
    "axis": np.array(1, np.int64),
    "rows": np.ones((0, 4), np.float32),
    "columns": np.ones((2, 3), np.float32),
}


@pytest.mark.parametrize("name", CASES)
def test_nodes_over_tensors_without_elements(name: str) -> None:
    op, order, attributes = CASES[name]
    inputs = {"x": EMPTY}
    constants = {key: value for key, value in {**OPERANDS, **INTEGERS}.items() if key in order and key != "x"}
    model = one_node(op, inputs, constants, order=order, **attributes)
    found, expected = ours(model, [EMPTY]), by_reference(model, [EMPTY])
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)
