"""ONNX loops that collect a value of each turn, and scans over symbolic or long axes, compiled."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.compiler import compile_program
from lowerkit.errors import UnsupportedError
from tests.support.suite.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import Array, assert_close, by_onnxruntime


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')


def assert_as_onnxruntime(model: onnx.ModelProto, *calls: list[Array]) -> None:
    compiled = compile_program(capture_onnx(model))
    assert "control_flow" in compiled.parts.manifest.features
    for inputs in calls:
        expected = by_onnxruntime(model, inputs)
        found = compiled.session.run(*inputs)
        assert [value.shape for value in found] == [value.shape for value in expected]
        assert_close(found, expected, 1e-5)


LOOP = """
    g (float[n, 3] x, float[3] s) => (float[3] last, float[k, 2] rows, bool[k] signs) {
      HEAD
      last, rows, signs = Loop (count, , s) <body = b (int64 i, bool c, float[3] v)
            => (bool d, float[3] w, float[2] row, bool sign) {
          d = Identity (c)
          item = Gather <axis = 0> (x, TURN)
          sum = Add (v, item)
          w = Tanh (sum)
          start = Constant <value = int64[1] {1}> ()
          stop = Constant <value = int64[1] {3}> ()
          row = Slice (w, start, stop)
          total = ReduceSum <keepdims = 0> (w)
          zero = Constant <value = float {0.0}> ()
          sign = Less (zero, total)
      }>
    }"""
BY_SHAPE = """shape = Shape (x)
      first = Constant <value = int64 {0}> ()
      count = Gather <axis = 0> (shape, first)"""


def test_a_loop_over_the_rows_of_a_symbolic_axis() -> None:
    model = parsed(LOOP.replace("HEAD", BY_SHAPE).replace("TURN", "i"))
    assert_as_onnxruntime(model, *([normal(n, 3), normal(3)] for n in (4, 1, 9)))


def test_a_loop_of_many_turns() -> None:
    head = "count = Constant <value = int64 {600}> ()\n zeroth = Constant <value = int64 {0}> ()"
    model = parsed(LOOP.replace("HEAD", head).replace("TURN", "zeroth").replace("[n, 3]", "[2, 3]"))
    assert_as_onnxruntime(model, [normal(2, 3), normal(3)])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("backward", [0, 1])
def test_a_scan_over_a_symbolic_axis(axis: int, backward: int) -> None:
    """Two scanned inputs; the batch is symbolic too."""
    shapes = {0: "t, b, 3", 1: "b, t, 3", -1: "b, 3, t"}[axis]
    model = parsed(f"""
        g (float[b, 3] s, float[t, b, 3] x, float[t, 3] z) => (float[b, 3] last, float[{shapes}] rows) {{
          last, rows = Scan <num_scan_inputs = 2, scan_input_directions = [{backward}, {1 - backward}],
                             scan_output_axes = [{axis}], scan_output_directions = [{backward}],
                             body = step (float[b, 3] a, float[b, 3] item, float[3] other)
                                    => (float[b, 3] c, float[b, 3] r) {{
            h = Add (a, item)
            c = Tanh (h)
            r = Mul (c, other)
          }}> (s, x, z)
        }}""")
    assert_as_onnxruntime(model, *([normal(b, 3), normal(t, b, 3), normal(t, 3)] for t, b in ((5, 2), (1, 1), (8, 3))))


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("m = ReduceMax <keepdims = 0> (x)\n count = Cast <to = 7> (m)", "d = Identity (c)"),
        (BY_SHAPE, "zero = Constant <value = float {0.0}> ()\n d = Less (zero, w)"),
    ],
    ids=["count", "condition"],
)
def test_a_number_of_turns_that_data_decides_is_refused(head: str, body: str) -> None:
    model = parsed(f"""
        g (float[n] x) => (float last, float[k] rows) {{
          {head}
          start = Constant <value = float {{1.0}}> ()
          last, rows = Loop (count, , start) <body = b (int64 i, bool c, float v) => (bool d, float w, float row) {{
              w = Mul (v, v)
              row = Identity (w)
              {body}
          }}>
        }}""")
    with pytest.raises(UnsupportedError, match="collects a value of each turn") as caught:
        capture_onnx(model)
    assert caught.value.code == "LK4001"
