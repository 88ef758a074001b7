"""ONNX nodes over open extents compute what ONNX Runtime does, at each size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lowerkit.capture.onnx.capture import capture_onnx
from tests.unit.capture.onnx.one_node_models import Array, by_onnxruntime, normal
from tests.unit.capture.running import run_program

Dims = list[str | int]
IMAGE: Dims = ["n", 2, "h", "w"]
SIZES = [{"n": 1, "h": 5, "w": 7}, {"n": 2, "h": 8, "w": 6}]


@dataclass
class Case:
    """A node on ``x``; ``result`` states its dims as expressions of those of the operand."""

    op_type: str
    result: Dims
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    dims: Dims = field(default_factory=lambda: list(IMAGE))


def integers(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


WINDOW = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}
HALVED: Dims = ["n", 2, "(h-1)//2+1", "(w-1)//2+1"]
PADS = integers(0, 0, 1, 0, 0, 0, 2, 0)
CASES = {
    "Conv": Case("Conv", ["n", 4, "h", "w"], {"w": normal(4, 2, 3, 3)}, {"pads": [1] * 4}),
    "Conv, uneven": Case("Conv", ["n", 4, "h", "w"], {"w": normal(4, 2, 3, 3)}, {"pads": [0, 0, 2, 2]}),
    "Conv, same": Case("Conv", ["n", 4, "h", "w"], {"w": normal(4, 2, 3, 3)}, {"auto_pad": "SAME_UPPER"}),
    "ConvTranspose": Case("ConvTranspose", ["n", 3, "2*h+1", "2*w+1"], {"w": normal(2, 3, 3, 3)}, {"strides": [2, 2]}),
    "MaxPool": Case("MaxPool", HALVED, {}, WINDOW),
    "AveragePool": Case("AveragePool", HALVED, {}, WINDOW),
    "LpPool": Case("LpPool", HALVED, {}, WINDOW | {"p": 3}),
    "GlobalMaxPool": Case("GlobalMaxPool", ["n", 2, 1, 1]),
    "LRN": Case("LRN", IMAGE, {}, {"size": 3}),
    "InstanceNormalization": Case("InstanceNormalization", IMAGE, {"s": normal(2), "b": normal(2)}),
    "GroupNormalization": Case("GroupNormalization", IMAGE, {"s": normal(2), "b": normal(2)}, {"num_groups": 2}),
    "MeanVarianceNormalization": Case("MeanVarianceNormalization", IMAGE),
    "Flatten": Case("Flatten", ["n", "2*h*w"]),
    "Slice, from the end": Case("Slice", ["n", 2, "h-2", "w"], {"a": integers(0), "b": integers(-2), "c": integers(2)}),
    "Slice, steps": Case(
        "Slice", ["n", 2, "(h+1)//2", "w"],
        {"a": integers(0), "b": integers(1 << 62), "c": integers(2), "d": integers(2)},
    ),
    "Gather, from the end": Case("Gather", ["n", 2, 2, "w"], {"i": integers(-1, 0)}, {"axis": 2}),
    "Pad": Case("Pad", ["n", 2, "h+3", "w"], {"p": PADS}),
    **{f"Pad, {mode}": Case("Pad", ["n", 2, "h+3", "w"], {"p": PADS}, {"mode": mode})
       for mode in ("edge", "reflect", "wrap")},
    "Tile": Case("Tile", ["2*n", 2, "h", "3*w"], {"r": integers(2, 1, 1, 3)}),
    "DepthToSpace": Case("DepthToSpace", ["n", 2, "2*h", "2*w"], {}, {"blocksize": 2, "mode": "CRD"},
                         ["n", 8, "h", "w"]),
    "Einsum": Case("Einsum", ["n", "h", "w"], {"y": normal(3, 2)}, {"equation": "nchw,kc->nhw"}),
}  # fmt: skip


def model_of(case: Case) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", case.dims), ("z", case.result))
    ]
    node = helper.make_node(case.op_type, ["x", *case.constants], ["z"], **case.attributes)
    constants = [numpy_helper.from_array(array, name) for name, array in case.constants.items()]
    graph = helper.make_graph([node], "graph", values[:1], values[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("name", CASES)
def test_a_node_over_open_extents(name: str) -> None:
    case = CASES[name]
    model = model_of(case)
    program = capture_onnx(model)
    for sizes in SIZES:
        x = normal(*[sizes[dim] if isinstance(dim, str) else dim for dim in case.dims])
        (found,), (wanted,) = run_program(program, [x]), by_onnxruntime(model, [x])
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
