"""The witness of an ONNX model: each distinct node alone beside ONNX Runtime, or ONNX's evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.dialect.ops.softmax import SoftmaxOp
from lowerkit.dialect.reference.numeric import Array
from lowerkit.parity.witness.onnx_op import OnnxOp
from lowerkit.parity.witness.onnx_ops import witness_onnx_ops
from lowerkit.parity.witness.verdicts import VerdictCache, Witnessed
from lowerkit.runtimes.manifest import Dim

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def witnessed(text: str, *dims: Dim, weights: dict[str, Array] | None = None) -> list[Witnessed]:
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in (weights or {}).items())
    return witness_onnx_ops(capture_onnx(model, dims=dims), None)


NETWORK = """g (float[batch, 12] x) => (float[batch, 4] y) {
    a = Gemm <transB = 1> (x, weight, bias)
    b = Relu (a)
    shape = Shape (b)
    c = Reshape (b, sizes)
    d = Transpose <perm = [0, 2, 1]> (c)
    e = ReduceMean <keepdims = 0> (d, axes)
    f = Softmax <axis = -1> (e)
    y = Add (f, e)
}"""
WEIGHTS: dict[str, Array] = {
    "weight": np.ones((24, 12), np.float32),
    "bias": np.zeros(24, np.float32),
    "sizes": np.array([0, 4, 6], np.int64),
    "axes": np.array([1], np.int64),
}


def test_each_node_is_compared_at_several_extents_and_on_special_values() -> None:
    found = {each.name: each for each in witnessed(NETWORK, Dim("batch", 1, 9), weights=WEIGHTS)}
    read = [name for name in found if name != "Shape"]  # nobody reads it
    assert [found[name].verdict for name in read] == ["same"] * 7
    assert all(found[name].cases["special"] > 20 and found[name].cases["extents"] >= 4 for name in read)
    assert found["Gemm"].operands.startswith("f32[n_batch,9], f32[10,9], f32[10]")
    assert "i64 [0, 4, 6]" in found["Reshape"].operands and found["Softmax"].places == ["node 6, Softmax"]


def test_a_wrong_number_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    own = SoftmaxOp.reference

    def wrong(op: SoftmaxOp, value: Array) -> tuple[Array, ...]:
        return tuple(result * np.asarray(1.01, result.dtype) for result in own(op, value))

    monkeypatch.setattr(SoftmaxOp, "reference", wrong)
    found = witnessed(NETWORK, Dim("batch", 1, 9), weights=WEIGHTS)
    assert [each.name for each in found if each.verdict == "differs"] == ["Softmax"]


def test_what_agrees_with_one_of_two_owners_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    own: Callable[..., Any] = OnnxOp.call
    text = "g (float[5] x) => (float[5] y) { y = Exp (x) }"
    monkeypatch.setattr(OnnxOp, "call", lambda op, tensors: [value + 1 for value in own(op, tensors)])
    assert [each.verdict for each in witnessed(text)] == ["same"]
    monkeypatch.setattr(OnnxOp, "second_opinion", lambda op, tensors: [value + 2 for value in own(op, tensors)])
    assert [each.verdict for each in witnessed(text)] == ["differs"]


def test_sizes_that_are_known_are_computed_and_what_cannot_be_run_is_said() -> None:
    found = witnessed("""g (float[2, 3, 4] x, bool c) => (float[6, 4] y, float[2, 3, 4] z) {
        shape = Shape (x)
        last = Slice (shape, two, three)
        all = Concat <axis = 0> (minus, last)
        y = Reshape (x, all)
        z = If (c) <
            then_branch = t () => (float[2, 3, 4] a) { a = Exp (x) },
            else_branch = e () => (float[2, 3, 4] b) { b = Neg (x) }>
    }""", weights={"two": np.array([2]), "three": np.array([3]), "minus": np.array([-1])})  # fmt: skip
    assert [(each.name, each.verdict, each.reason) for each in found] == [
        ("Reshape", "same", ""),
        ("If", "left out", "control flow"),
    ]


def test_powers_to_integers_that_no_float_has() -> None:
    """2^31 - 1 is odd: a negative number stays one."""
    (found,) = witnessed("g (float[5] x, int32[5] n) => (float[5] y) { y = Pow (x, n) }")
    assert found.verdict == "same" and found.cases["special"] > 20


def test_a_verdict_is_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[5] x) => (float[5] y) {{ y = Exp (x) }}")
    cache = VerdictCache(tmp_path)
    first = witness_onnx_ops(capture_onnx(model), cache)
    monkeypatch.setattr("lowerkit.parity.witness.ops.witness", lambda *_: pytest.fail("it was known"))
    assert witness_onnx_ops(capture_onnx(model), cache) == first


def test_nodes_that_differ_in_a_tensor_of_an_attribute_are_two() -> None:
    values = [onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [number]) for number in (1.0, 2.0)]
    nodes = [onnx.helper.make_node("ConstantOfShape", ["x0"], ["y0"], value=value) for value in values]
    first, second = (OnnxOp(node, (), {}, [("", 21)]).key for node in nodes)
    assert first != second
