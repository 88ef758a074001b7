"""Control flow of known course is written out; functions of the standard are expanded; parameters become constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from lowerkit.capture.onnx import capture_onnx
from lowerkit.capture.onnx_parameters import parameter_inputs
from lowerkit.errors import UnsupportedError, UsageError
from tests.unit.capture.onnx_models import Array, assert_close, by_onnxruntime, by_reference, one_node, ours

RNG = np.random.default_rng()


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')


def test_a_loop_of_known_length() -> None:
    model = parsed("""
        g (float[3] x) => (float[3] total, float[4, 3] rows) {
          trips = Constant <value = int64 {4}> ()
          on = Constant <value = bool {1}> ()
          total, rows = Loop (trips, on, x) <body = step (int64 i, bool c, float[3] a)
                                                    => (bool d, float[3] b, float[3] r) {
            d = Identity (c)
            f = Cast <to = 1> (i)
            t = Mul (a, x)
            b = Add (t, f)
            r = Sub (b, x)
          }>
        }""")
    x = normal(3)
    assert_close(ours(model, [x]), by_reference(model, [x]))


def test_a_loop_that_ends_by_a_condition_is_refused() -> None:
    model = parsed("""
        g (float[3] x) => (float[3] total) {
          trips = Constant <value = int64 {4}> ()
          on = Constant <value = bool {1}> ()
          total = Loop (trips, on, x) <body = step (int64 i, bool c, float[3] a) => (bool d, float[3] b) {
            b = Add (a, x)
            s = ReduceSum <keepdims = 0> (b)
            z = Constant <value = float {0.0}> ()
            d = Less (s, z)
          }>
        }""")
    with pytest.raises(UnsupportedError, match="control flow"):
        capture_onnx(model)


@pytest.mark.parametrize("backward", [0, 1])
def test_a_scan(backward: int) -> None:
    model = parsed(f"""
        g (float[2] s, float[2, 5] x) => (float[2] last, float[5, 2] rows) {{
          last, rows = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [{backward}],
                             scan_output_directions = [{backward}],
                             body = step (float[2] a, float[2] item) => (float[2] b, float[2] r) {{
            b = Add (a, item)
            r = Mul (b, s)
          }}> (s, x)
        }}""")
    inputs = [normal(2), normal(2, 5)]
    assert_close(ours(model, inputs), by_onnxruntime(model, inputs))


@pytest.mark.parametrize("condition", [0, 1])
def test_a_branch_that_is_always_taken(condition: int) -> None:
    model = parsed(f"""
        g (float[3] x) => (float[3] y) {{
          c = Constant <value = bool {{{condition}}}> ()
          h = Relu (x)
          y = If (c) <then_branch = t () => (float[3] a) {{ a = Add (x, h) }},
                      else_branch = e () => (float[3] b) {{ b = Identity (h) }}>
        }}""")
    x = normal(3)
    assert_close(ours(model, [x]), [x + np.maximum(x, 0) if condition else np.maximum(x, 0)], 0)


def test_a_branch_taken_by_data_is_refused() -> None:
    model = parsed("""
        g (bool c, float[3] x) => (float[3] y) {
          y = If (c) <then_branch = t () => (float[3] a) { a = Relu (x) },
                      else_branch = e () => (float[3] b) { b = Neg (x) }>
        }""")
    with pytest.raises(UnsupportedError, match="control flow"):
        capture_onnx(model)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2])
def test_losses_are_expanded(reduction: str, weighted: bool, ignored: int | None) -> None:
    scores, target = normal(3, 5, 2), RNG.integers(0, 5, (3, 2))
    constants = {"w": np.abs(normal(5))} if weighted else {}
    fields: dict[str, Any] = {"reduction": reduction, **({} if ignored is None else {"ignore_index": ignored})}
    for op_type in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        model = one_node(op_type, {"x": scores, "t": target}, constants, opset=13, **fields)
        assert_close(ours(model, [scores, target]), by_onnxruntime(model, [scores, target]), 1e-5)


def test_a_function_keeps_the_location_of_its_call() -> None:
    x = normal(1, 2, 4, 8)
    cache = normal(16, 4)
    model = one_node("RotaryEmbedding", {"x": x}, {"c": cache, "s": cache, "p": np.arange(4)[None]}, opset=23)
    program = capture_onnx(model)
    assert '"node@' in program.text(locations=True)
    assert_close(ours(model, [x]), by_reference(model, [x]), 1e-5)


def reshaping() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["shape"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "wide"], ["h"]),
        helper.make_node("Add", ["h", "bias"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [6]),
        helper.make_tensor_value_info("shape", TensorProto.INT32, [2]),
        helper.make_tensor_value_info("bias", TensorProto.FLOAT, [1]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_parameters_are_found_through_other_nodes_and_data_is_none() -> None:
    assert parameter_inputs(reshaping()) == ["shape"]
    assert parameter_inputs(one_node("Add", {"x": normal(3), "z": normal(3)})) == []


def test_parameters_are_found_inside_branches() -> None:
    model = parsed("""
        g (float[6] x, int64[2] shape, bool c) => (float[a, b] y) {
          y = If (c) <then_branch = t () => (float[a, b] u) { u = Reshape (x, shape) },
                      else_branch = e () => (float[a, b] v) { n = Neg (x) v = Reshape (n, shape) }>
        }""")
    assert parameter_inputs(model) == ["shape", "c"]


def test_large_operands_are_data() -> None:
    table = np.arange(65)
    assert parameter_inputs(one_node("Expand", {"x": normal(1), "shape": table})) == []


def test_fixed_inputs_leave_the_signature() -> None:
    program = capture_onnx(reshaping(), fixed_inputs={"shape": np.array([3, 2], np.int32)})
    assert [spec.name for spec in program.signature.inputs] == ["x", "bias"]
    assert program.signature.outputs[0].shape == [3, 2]
    assert program.eager is not None
    x, bias = normal(6), normal(1)
    np.testing.assert_array_equal(program.eager(x, bias)[0], x.reshape(3, 2) + bias)


def test_unknown_fixed_inputs_are_refused() -> None:
    with pytest.raises(UsageError, match="'absent'"):
        capture_onnx(reshaping(), fixed_inputs={"absent": np.zeros(1)})


def test_fixing_replaces_a_default() -> None:
    model = one_node("Add", {"x": normal(3)}, {"z": normal(3)})
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [3]))
    y, x = normal(3), normal(3)
    program = capture_onnx(model, fixed_inputs={"z": y})
    assert program.eager is not None
    np.testing.assert_array_equal(program.eager(x)[0], x + y)
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() != y.tolist()  # the caller's model is untouched
