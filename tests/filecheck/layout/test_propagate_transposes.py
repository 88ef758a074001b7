"""propagate-transposes: each kind of op that transposes pass through, and the ones that stop them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

# %t is NCHW, stored as NHWC. A case computes %r from it; the result is transposed back, as the next convolution would.
FRAME = """
#id = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#channel = affine_map<(d0, d1, d2, d3) -> (d1, 0, 0)>
func.func @main(%x: tensor<2x6x5x4xf32>, %y: tensor<2x4x6x5xf32>) -> RESULT {
  %c0 = arith.constant 0.5 : f32
  %e = tensor.empty() : tensor<2x4x6x5xf32>
  %t = linalg.transpose ins(%x : tensor<2x6x5x4xf32>) outs(%e : tensor<2x4x6x5xf32>) permutation = [0, 3, 1, 2]
  BODY
  return %r : RESULT
}
"""
BACK = """
  %eb = tensor.empty() : SHAPE
  %r = linalg.transpose ins(%s : FROM) outs(%eb : SHAPE) permutation = [0, 2, 3, 1]
"""
INPUTS = [random_array(2, 6, 5, 4), random_array(2, 4, 6, 5, seed=3)]


def frame(body: str, result: str) -> str:
    return FRAME.replace("BODY", body).replace("RESULT", result)


def back(shape: str, source: str) -> str:
    return BACK.replace("SHAPE", shape).replace("FROM", source)


SAME = back("tensor<2x6x5x4xf32>", "tensor<2x4x6x5xf32>")
BIAS = """
  %b = "lk.weight"() {symbol = "b"} : () -> tensor<4x1x1xf32>
  %s = linalg.generic {indexing_maps = [#id, #channel, #id],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%t, %b : tensor<2x4x6x5xf32>, tensor<4x1x1xf32>) outs(%e : tensor<2x4x6x5xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %k = linalg.index 1 : index
    %l = arith.index_cast %k : index to i32
    %m = arith.sitofp %l : i32 to f32
    %u = arith.addf %i, %j : f32
    %v = arith.mulf %u, %m : f32
    linalg.yield %v : f32
  } -> tensor<2x4x6x5xf32>
"""
CASES = {
    "elementwise with a bias per channel and an index": (BIAS + SAME, "tensor<2x6x5x4xf32>"),
    "reduction over the spatial dims": (
        '%r = "lk.reduce"(%t) {kind = "mean", axes = array<i64: 2, 3>, keep_dims = false}'
        " : (tensor<2x4x6x5xf32>) -> tensor<2x4xf32>",
        "tensor<2x4xf32>",
    ),
    "reduction that keeps its dims": (
        '%s = "lk.reduce"(%t) {kind = "max", axes = array<i64: 2>, keep_dims = true}'
        " : (tensor<2x4x6x5xf32>) -> tensor<2x4x1x5xf32>" + back("tensor<2x1x5x4xf32>", "tensor<2x4x1x5xf32>"),
        "tensor<2x1x5x4xf32>",
    ),
    "softmax over channels": (
        '%s = "lk.softmax"(%t) {axis = 1 : i64, log = false} : (tensor<2x4x6x5xf32>) -> tensor<2x4x6x5xf32>' + SAME,
        "tensor<2x6x5x4xf32>",
    ),
    "concat along channels": (
        "%s = tensor.concat dim(1) %t, %t : (tensor<2x4x6x5xf32>, tensor<2x4x6x5xf32>) -> tensor<2x8x6x5xf32>"
        + back("tensor<2x6x5x8xf32>", "tensor<2x8x6x5xf32>"),
        "tensor<2x6x5x8xf32>",
    ),
    "padding": (
        "%s = tensor.pad %t low[0, 0, 1, 0] high[0, 0, 2, 3] {\n^bb0(%a: index, %b: index, %c: index, %d: index):\n"
        "tensor.yield %c0 : f32\n} : tensor<2x4x6x5xf32> to tensor<2x4x9x8xf32>"
        + back("tensor<2x9x8x4xf32>", "tensor<2x4x9x8xf32>"),
        "tensor<2x9x8x4xf32>",
    ),
    "slice of channels": (
        "%s = tensor.extract_slice %t[0, 1, 0, 0] [2, 2, 6, 5] [1, 1, 1, 1]"
        " : tensor<2x4x6x5xf32> to tensor<2x2x6x5xf32>" + back("tensor<2x6x5x2xf32>", "tensor<2x2x6x5xf32>"),
        "tensor<2x6x5x2xf32>",
    ),
    "flattened pixels": (
        "%f = tensor.collapse_shape %t [[0], [1], [2, 3]] : tensor<2x4x6x5xf32> into tensor<2x4x30xf32>\n"
        "%ef = tensor.empty() : tensor<2x30x4xf32>\n"
        "%r = linalg.transpose ins(%f : tensor<2x4x30xf32>) outs(%ef : tensor<2x30x4xf32>) permutation = [0, 2, 1]",
        "tensor<2x30x4xf32>",
    ),
    "grouped channels": (
        "%g = tensor.expand_shape %t [[0], [1, 2], [3], [4]] output_shape [2, 2, 2, 6, 5]"
        " : tensor<2x4x6x5xf32> into tensor<2x2x2x6x5xf32>\n"
        "%eg = tensor.empty() : tensor<2x6x5x2x2xf32>\n"
        "%r = linalg.transpose ins(%g : tensor<2x2x2x6x5xf32>) outs(%eg : tensor<2x6x5x2x2xf32>)"
        " permutation = [0, 3, 4, 1, 2]",
        "tensor<2x6x5x2x2xf32>",
    ),
    "right operand of a matrix product": (
        "%es = tensor.empty() : tensor<2x4x5x6xf32>\n"
        "%sw = linalg.transpose ins(%y : tensor<2x4x6x5xf32>) outs(%es : tensor<2x4x5x6xf32>)"
        " permutation = [0, 1, 3, 2]\n"
        '%r = "lk.matmul"(%y, %sw) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}'
        " : (tensor<2x4x6x5xf32>, tensor<2x4x5x6xf32>) -> tensor<2x4x6x6xf32>",
        "tensor<2x4x6x6xf32>",
    ),
    "average pool": (
        "%n = tensor.empty() : tensor<2x5x6x4xf32>\n"
        "%z = linalg.transpose ins(%x : tensor<2x6x5x4xf32>) outs(%n : tensor<2x5x6x4xf32>)"
        " permutation = [0, 2, 1, 3]\n"
        '%p = "lk.avg_pool"(%z) {channels_last = true, kernel = array<i64: 2, 3>, strides = array<i64: 1, 2>,'
        " padding = array<i64: 0, 1, 1, 1>, dilation = array<i64: 1, 1>, count_include_pad = false, divisor = 0 : i64,"
        " ceil_extra = array<i64: 0, 0>} : (tensor<2x5x6x4xf32>) -> tensor<2x5x3x4xf32>\n"
        "%ep = tensor.empty() : tensor<2x3x5x4xf32>\n"
        "%r = linalg.transpose ins(%p : tensor<2x5x3x4xf32>) outs(%ep : tensor<2x3x5x4xf32>)"
        " permutation = [0, 2, 1, 3]",
        "tensor<2x3x5x4xf32>",
    ),
}
WEIGHTS = {"b": random_array(4, 1, 1, seed=4)}


@pytest.mark.parametrize("name", CASES)
def test_transposes_vanish(check: Check, name: str) -> None:
    text = frame(*CASES[name])
    check(text, "propagate-transposes", "// CHECK-NOT: linalg.transpose\n// CHECK: return", WEIGHTS)
    tolerance = 1e-6 if "reduction" in name or "softmax" in name or "pool" in name else 0.0
    assert_same_results(text, "propagate-transposes", INPUTS, WEIGHTS, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_sums_of_floats_stay_where_they_are_in_one_order(check: Check, name: str) -> None:
    """What is in front of them may be moved by a collective, which a mesh has and another has not."""
    adds = name in ("reduction over the spatial dims", "softmax over channels", "average pool")
    result = CASES[name][1]
    marked = frame(*CASES[name]).replace(f"-> {result} {{", f"-> {result} attributes {{lk.invariant}} {{", 1)
    found = "CHECK" if adds else "CHECK-NOT"
    check(marked, "propagate-transposes", f"// {found}: linalg.transpose\n// CHECK: return", WEIGHTS)


MIXED = (
    """
  %s = linalg.generic {indexing_maps = [#id, #id, #id],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%t, %y : tensor<2x4x6x5xf32>, tensor<2x4x6x5xf32>) outs(%e : tensor<2x4x6x5xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %u = arith.addf %i, %j : f32
    linalg.yield %u : f32
  } -> tensor<2x4x6x5xf32>
"""
    + SAME,
    "tensor<2x6x5x4xf32>",
)
STAY = {
    "inputs stored in two orders": MIXED,
    "softmax along rows": (
        '%s = "lk.softmax"(%t) {axis = 3 : i64, log = false} : (tensor<2x4x6x5xf32>) -> tensor<2x4x6x5xf32>' + SAME,
        "tensor<2x6x5x4xf32>",
    ),
    "concat with an input that is not transposed": (
        "%s = tensor.concat dim(1) %t, %y : (tensor<2x4x6x5xf32>, tensor<2x4x6x5xf32>) -> tensor<2x8x6x5xf32>"
        + back("tensor<2x6x5x8xf32>", "tensor<2x8x6x5xf32>"),
        "tensor<2x6x5x8xf32>",
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_transposes_that_stay(check: Check, name: str) -> None:
    text = frame(*STAY[name])
    check(text, "propagate-transposes", "// CHECK-COUNT-2: linalg.transpose", WEIGHTS)
    assert_same_results(text, "propagate-transposes", INPUTS, WEIGHTS)


SHUFFLE = """
%g = tensor.expand_shape %t [[0], [1, 2], [3], [4]] output_shape [2, 2, 2, 6, 5]
  : tensor<2x4x6x5xf32> into tensor<2x2x2x6x5xf32>
%eg = tensor.empty() : tensor<2x2x2x6x5xf32>
%h = linalg.transpose ins(%g : tensor<2x2x2x6x5xf32>) outs(%eg : tensor<2x2x2x6x5xf32>) permutation = [0, 2, 1, 3, 4]
%s = tensor.collapse_shape %h [[0], [1, 2], [3], [4]] : tensor<2x2x2x6x5xf32> into tensor<2x4x6x5xf32>
"""


def test_a_channel_shuffle_keeps_one_transpose(check: Check) -> None:
    text = frame(SHUFFLE + SAME, "tensor<2x6x5x4xf32>")
    check(
        text,
        "propagate-transposes",
        """
        // CHECK: linalg.transpose
        // CHECK-SAME: permutation = [0, 1, 2, 4, 3]
        // CHECK-NOT: linalg.transpose
        // CHECK: return
        """,
    )
    assert_same_results(text, "propagate-transposes", INPUTS)


def test_attention_heads_are_left_where_they_are(check: Check) -> None:
    """[B, H, S, D] -> [B, S, H*D]: pushing a part of the transpose below the collapse would gain nothing."""
    text = """
    func.func @main(%x: tensor<2x4x6x5xf32>) -> tensor<2x6x20xf32> {
      %e = tensor.empty() : tensor<2x6x4x5xf32>
      %t = linalg.transpose ins(%x : tensor<2x4x6x5xf32>) outs(%e : tensor<2x6x4x5xf32>) permutation = [0, 2, 1, 3]
      %c = tensor.collapse_shape %t [[0], [1], [2, 3]] : tensor<2x6x4x5xf32> into tensor<2x6x20xf32>
      return %c : tensor<2x6x20xf32>
    }
    """
    check(text, "propagate-transposes", "// CHECK: linalg.transpose\n// CHECK-NEXT: tensor.collapse_shape")


def test_a_move_of_unit_extents_is_a_view(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<2x1x1x4xf32>) -> tensor<2x4x1x1xf32> {
      %e = tensor.empty() : tensor<2x4x1x1xf32>
      %t = linalg.transpose ins(%x : tensor<2x1x1x4xf32>) outs(%e : tensor<2x4x1x1xf32>) permutation = [0, 3, 1, 2]
      return %t : tensor<2x4x1x1xf32>
    }
    """
    check(text, "propagate-transposes", "// CHECK: tensor.collapse_shape\n// CHECK-NEXT: tensor.expand_shape")
    assert_same_results(text, "propagate-transposes", [random_array(2, 1, 1, 4)])


def test_dynamic_batch(check: Check) -> None:
    text = frame(*CASES["flattened pixels"]).replace("<2x", "<?x")
    text = text.replace("tensor.empty() : tensor<?x4x6x5xf32>", "tensor.empty(%d) : tensor<?x4x6x5xf32>").replace(
        "tensor.empty() : tensor<?x30x4xf32>", "tensor.empty(%d) : tensor<?x30x4xf32>"
    )
    text = text.replace(
        "%c0 =", "%zero = arith.constant 0 : index\n%d = tensor.dim %x, %zero : tensor<?x6x5x4xf32>\n%c0 ="
    )
    check(text, "propagate-transposes", "// CHECK-NOT: linalg.transpose\n// CHECK: return")
    assert_same_results(text, "propagate-transposes", INPUTS)
