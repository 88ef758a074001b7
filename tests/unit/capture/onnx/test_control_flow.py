"""Control flow: written out, or functions of the module; the standard's functions; parameters as constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.capture.onnx.shape_parameters import parameter_inputs
from lowerkit.compiler import compile_program
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.pipeline import run_stages
from lowerkit.program.program import Program
from tests.support.suite.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import Array, assert_close, by_onnxruntime, by_reference, one_node, ours


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


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


def test_a_loop_that_ends_by_a_condition() -> None:
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
    for x in (normal(3), np.array([-1, 0, 0.5], np.float32), np.ones(3, np.float32)):
        assert_close(ours(model, [x]), by_onnxruntime(model, [x]), 1e-6)


@pytest.mark.parametrize("chosen", [False, True])
def test_branches_of_unsigned_integers(chosen: bool) -> None:
    model = parsed("""
        g (bool c, uint32[3] x) => (uint32[3] y) {
          y = If (c) <then_branch = t () => (uint32[3] a) { a = Identity (x) },
                      else_branch = e () => (uint32[3] b) { b = Add (x, x) }>
        }""")
    x = np.array([7, 1 << 31, (1 << 32) - 1], np.uint32)
    assert_close(ours(model, [np.array(chosen), x]), [x if chosen else x + x], 0)


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


BY_DATA = {
    "branches": """
        g (bool c, float[3] x) => (float[3] y, float[3] z) <float[3] w = {1.0, -2.0, 3.0}> {
          h = Relu (x)
          y, s = If (c) <then_branch = t () => (float[3] a, float[3] a2) {
                           a = Mul (h, w)
                           a2 = Identity (x) },
                         else_branch = e () => (float[3] b, float[3] b2) {
                           two = Constant <value = float[3] {2.0, 2.0, 2.0}> ()
                           b = Add (x, two)
                           b2 = Identity (two) }>
          z = Neg (s)
        }""",
    "nested": """
        g (bool c, float[3] x) => (float[3] y) {
          m = ReduceMax <keepdims = 0> (x)
          zero = Constant <value = float {0.0}> ()
          y = If (c) <then_branch = t () => (float[3] a) {
                        d = Greater (m, zero)
                        a = If (d) <then_branch = tt () => (float[3] aa) { aa = Exp (x) },
                                    else_branch = te () => (float[3] ab) { ab = Sub (x, m) }> },
                      else_branch = e () => (float[3] b) { b = Neg (x) }>
        }""",
    "loop": """
        g (bool c, float[3] x) => (float[3] y, int64[1] n) {
          one = Constant <value = int64[1] {1}> ()
          limit = Constant <value = float {50.0}> ()
          trips = Constant <value = int64 {600}> ()
          n0 = Constant <value = int64[1] {0}> ()
          y, n = Loop (trips, c, x, n0) <body = b (int64 i, bool going, float[3] v, int64[1] k)
                => (bool on, float[3] w, int64[1] k1) {
              w = Add (v, x)
              k1 = Add (k, one)
              big = ReduceMax <keepdims = 0> (w)
              on = Less (big, limit) }>
        }""",
    "loop without a trip count": """
        g (bool c, float[3] x) => (float[3] y) {
          y = Loop (, c, x) <body = b (int64 i, bool going, float[3] v) => (bool on, float[3] w) {
              f = Cast <to = 1> (i)
              w = Add (v, f)
              six = Constant <value = int64 {6}> ()
              on = Less (i, six) }>
        }""",
    "values called as lowerkit calls its own": """
        g (bool c, float[3] x) => (float[3] y) {
          turn = Abs (x)
          turns = Constant <value = int64 {5}> ()
          going = Neg (x)
          y = Loop (turns, c, x) <body = b (int64 i, bool result0, float[3] carried0) => (bool decision, float[3] w) {
              one = Constant <value = float {1.5}> ()
              next_turn = Mul (turn, one)
              early = Add (next_turn, going)
              w = Add (early, carried0)
              s = ReduceSum <keepdims = 0> (w)
              limit = Constant <value = float {9.0}> ()
              decision = Less (s, limit) }>
        }""",
    "branch in a loop": """
        g (bool c, float[3] x) => (float[3] y) <float[3] w = {1.0, -2.0, 3.0}> {
          s = ReduceSum <keepdims = 0> (x)
          a = Abs (s)
          t = Cast <to = 7> (a)
          y = Loop (t, c, x) <body = b (int64 i, bool going, float[3] v) => (bool on, float[3] u) {
              two = Constant <value = int64 {2}> ()
              m = Mod (i, two)
              even = Cast <to = 9> (m)
              u = If (even) <then_branch = p () => (float[3] q) { q = Mul (v, w) },
                             else_branch = r () => (float[3] z) { z = Add (v, x) }>
              on = Identity (going) }>
        }""",
}


@pytest.mark.parametrize("name", BY_DATA)
def test_control_flow_by_data(name: str) -> None:
    model = parsed(BY_DATA[name])
    program = capture_onnx(model)
    run_stages(program, "raised", PassContext(weights=program.weights))
    interpreted = interpreter(program)
    compiled = compile_program(program)
    assert "control_flow" in compiled.parts.manifest.features
    for condition in (True, False):
        for shift in (-3, 0, 3):
            inputs = [np.asarray(condition), normal(3) + np.float32(shift)]
            expected = by_onnxruntime(model, inputs)
            assert_close(interpreted(inputs), expected, 1e-6)
            assert_close(compiled.session.run(*inputs), expected, 1e-6)


def interpreter(program: Program) -> Callable[[list[Any]], list[Any]]:
    text, context = program.text(), program.context
    return lambda inputs: interpret(ir.Module.parse(text, context=context), inputs, program.weights.get)


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("""g (bool c, float[3] x) => (float[k] y) {
              y = If (c) <then_branch = t () => (float[3] a) { a = Relu (x) },
                          else_branch = e () => (float[6] b) { b = Concat <axis = 0> (x, x) }>
            }""", "LK4002", r"\[3\],f32> and .*\[6\],f32"),
        ("""g (int64 n, bool c, float[3] x) => (float[k, 3] y) {
              last, y = Loop (n, c, x) <body = b (int64 i, bool going, float[3] v)
                    => (bool on, float[3] w, float[3] row) {
                  w = Add (v, x)
                  row = Identity (w)
                  on = Identity (going) }>
            }""", "LK4001", "collects a value of each turn"),
        ("""g (int64 n, bool c, float[3] x) => (float[k] y) {
              y = Loop (n, c, x) <body = b (int64 i, bool going, float[m] v) => (bool on, float[l] w) {
                  w = Concat <axis = 0> (v, x)
                  on = Identity (going) }>
            }""", "LK400", "shape|types"),
    ],
)  # fmt: skip
def test_control_flow_that_is_refused(text: str, code: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        capture_onnx(parsed(text))
    assert caught.value.code.startswith(code)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2])
def test_losses_are_expanded(reduction: str, weighted: bool, ignored: int | None) -> None:
    scores, target = normal(3, 5, 2), RANDOM.integers(0, 5, (3, 2))
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
