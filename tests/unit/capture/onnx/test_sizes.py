"""ONNX declares dims apart that its operators need equal: what is compiled refuses sizes at which it is not right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import lowerkit
from lowerkit.errors import CaptureError, RuntimeFault

Shape = Sequence[str | int]

CASES: dict[str, tuple[Any, Sequence[Shape], Shape]] = {
    # node, shapes of the inputs, shape of the output; the dims "a" and "b" must be equal
    "Add": (("Add", {}), [["a", 3], ["b", 3]], ["a", 3]),
    "Min": (("Min", {}), [["a", 3], ["b", 3], ["b", 3]], ["a", 3]),
    "PRelu": (("PRelu", {}), [["a", 3], ["b", 1]], ["a", 3]),
    "Concat": (("Concat", {"axis": 1}), [["a", 3], ["b", 2]], ["a", 5]),
    "MatMul, summed": (("MatMul", {}), [[3, "a"], ["b", 5]], [3, 5]),
    "MatMul, batches": (("MatMul", {}), [["a", 3, 4], ["b", 4, 5]], ["a", 3, 5]),
    "Einsum": (("Einsum", {"equation": "ij,ik->jk"}), [["a", 3], ["b", 4]], [3, 4]),
    "LayerNormalization": (("LayerNormalization", {}), [[2, "a"], ["b"]], [2, "a"]),
}


def compiled(
    folder: Path, nodes: Sequence[Any], inputs: Sequence[Shape], output: Shape, constants: Sequence[Any] = ()
) -> Any:
    infos = [
        helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, shape) for number, shape in enumerate(inputs)
    ]
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, output)
    graph = helper.make_graph(list(nodes), "graph", infos, [result], list(constants))
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return lowerkit.compile(str(path))


@pytest.mark.parametrize("name", CASES)
def test_dims_that_an_operator_needs_equal(name: str, tmp_path: Path) -> None:
    (op, attributes), inputs, output = CASES[name]
    node = helper.make_node(op, [f"x{number}" for number in range(len(inputs))], ["z"], **attributes)
    model = compiled(tmp_path, [node], inputs, output)
    reference: Any = ReferenceEvaluator(str(tmp_path / "model.onnx"))

    def arguments(**sizes: int) -> list[np.ndarray[Any, Any]]:
        random = np.random.default_rng(0)
        return [
            random.standard_normal([sizes[e] if isinstance(e, str) else e for e in shape]).astype(np.float32)
            for shape in inputs
        ]

    for size in (1, 2, 5):
        given = arguments(a=size, b=size)
        expected = reference.run(None, {f"x{number}": value for number, value in enumerate(given)})[0]
        np.testing.assert_allclose(np.asarray(model(*given)), expected, rtol=1e-5, atol=1e-5)
    for a, b in ((4, 1), (1, 4), (4, 2), (2, 4)):
        with pytest.raises(RuntimeFault, match=r"LK8004(.|\n)*holds only where") as caught:
            model(*arguments(a=a, b=b))
        assert "a is" in str(caught.value)
        assert "b is" in str(caught.value)


def test_a_reshape_to_another_number_of_elements(tmp_path: Path) -> None:
    sizes = helper.make_tensor("s", TensorProto.INT64, [2], [4, 3])
    model = compiled(tmp_path, [helper.make_node("Reshape", ["x0", "s"], ["z"])], [["a", 6]], [4, 3], [sizes])
    value = np.arange(12, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(model(value.reshape(2, 6))), value.reshape(4, 3))
    for rows in (1, 4):
        with pytest.raises(RuntimeFault, match=r"LK8004(.|\n)*a \* 6 == 12"):
            model(np.zeros((rows, 6), np.float32))


def test_a_result_of_another_size_than_declared(tmp_path: Path) -> None:
    model = compiled(tmp_path, [helper.make_node("Relu", ["x0"], ["z"])], [["a", 3]], [4, 3])
    assert np.asarray(model(np.ones((4, 3), np.float32))).sum() == 12
    with pytest.raises(RuntimeFault, match=r"LK8004(.|\n)*a == 4"):
        model(np.ones((2, 3), np.float32))


def test_an_expansion_to_the_shape_of_another_input(tmp_path: Path) -> None:
    nodes = [helper.make_node("Shape", ["x1"], ["s"]), helper.make_node("Expand", ["x0", "s"], ["z"])]
    model = compiled(tmp_path, nodes, [["a", 3], ["b", 3]], ["a", 3])
    for a, b in ((5, 5), (5, 1), (1, 1)):
        x = np.random.default_rng(0).standard_normal((a, 3), np.float32)
        np.testing.assert_array_equal(model.session.run(x, np.zeros((b, 3), np.float32))[0], x)
    for a, b in ((1, 5), (5, 3)):  # the result has not the shape that it declares, or there is none
        with pytest.raises(RuntimeFault, match="LK8004"):
            model.session.run(np.zeros((a, 3), np.float32), np.zeros((b, 3), np.float32))


@pytest.mark.parametrize("before", [[], [helper.make_node("Abs", ["x0"], ["e"])]], ids=["an input", "a value"])
def test_more_elements_than_there_are(before: list[onnx.NodeProto], tmp_path: Path) -> None:
    """``TopK`` stands under the contract of ``topk``: it would make up what is missing."""
    count = helper.make_tensor("k", TensorProto.INT64, [1], [3])
    node = helper.make_node("TopK", [before[0].output[0] if before else "x0", "k"], ["z", "p"], name="/most", axis=0)
    model = compiled(tmp_path, [*before, node], [["a", 2]], [3, 2], [count])
    x = np.random.default_rng(0).random((5, 2), np.float32)
    for rows in (3, 5):
        np.testing.assert_array_equal(np.asarray(model(x[:rows])), -np.sort(-x[:rows], 0)[:3])
    for rows in (1, 2):
        with pytest.raises(RuntimeFault, match=r"LK8004(.|\n)*3 <= a: .* for TopK /most"):
            model(x[:rows])
    with pytest.raises(CaptureError, match="TopK needs 3 elements along an axis of 2") as refused:
        compiled(tmp_path, [*before, node], [[2, 2]], [3, 2], [count])
    assert refused.value.op == "/most"


def test_a_norm_whose_weights_fix_the_size(tmp_path: Path) -> None:
    model = compiled(tmp_path, [helper.make_node("LayerNormalization", ["x0", "x1"], ["z"])], [[2, "a"], [5]], [2, "a"])
    reference: Any = ReferenceEvaluator(str(tmp_path / "model.onnx"))
    x, scale = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((2, 5), (5,)))
    np.testing.assert_allclose(
        np.asarray(model(x, scale)), reference.run(None, {"x0": x, "x1": scale})[0], rtol=1e-5, atol=1e-5
    )
    for size in (1, 4, 6):
        with pytest.raises(RuntimeFault, match="LK8004"):
            model(np.ones((2, size), np.float32), scale)
