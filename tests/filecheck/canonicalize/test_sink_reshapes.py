"""sink-reshapes: views between an anchor and its elementwise readers move below them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

FLAT = """
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#other = affine_map<OTHER>
func.func @main(%x: tensor<12x4xf32>, %y: KIND) -> tensor<3x4x8xf32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<4x8xf32>
  %m = "lk.matmul"(%x, %w) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}
      : (tensor<12x4xf32>, tensor<4x8xf32>) -> tensor<12x8xf32>
  %v = tensor.expand_shape %m [[0, 1], [2]] output_shape [3, 4, 8] : tensor<12x8xf32> into tensor<3x4x8xf32>
  %e = tensor.empty() : tensor<3x4x8xf32>
  %r = linalg.generic {indexing_maps = [#id, #other, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%v, %y : tensor<3x4x8xf32>, KIND) outs(%e : tensor<3x4x8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.addf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<3x4x8xf32>
  return %r : tensor<3x4x8xf32>
}
"""
WEIGHTS = {"w": random_array(4, 8, seed=5)}


def flat(other: str, kind: str) -> str:
    return FLAT.replace("OTHER", other).replace("KIND", kind)


def test_bias_and_residual_after_a_flattened_product(check: Check) -> None:
    bias = flat("(d0, d1, d2) -> (d2)", "tensor<8xf32>")
    residual = flat("(d0, d1, d2) -> (d0, d1, d2)", "tensor<3x4x8xf32>")
    unit = flat("(d0, d1, d2) -> (0, 0, d2)", "tensor<1x1x8xf32>")
    expected = """
        // CHECK: %[[M:.*]] = "lk.matmul"
        // CHECK: linalg.generic {{.*}}ins(%[[M]]
        // CHECK: tensor.expand_shape
        // CHECK-NEXT: return
    """
    for text, shape in ((bias, (8,)), (residual, (3, 4, 8)), (unit, (1, 1, 8))):
        check(text, "sink-reshapes", expected, WEIGHTS)
        assert_same_results(text, "sink-reshapes", [random_array(12, 4), random_array(*shape, seed=1)], WEIGHTS)


def test_an_input_that_reads_part_of_a_group_keeps_the_view(check: Check) -> None:
    text = flat("(d0, d1, d2) -> (d1, d2)", "tensor<4x8xf32>")
    check(
        text,
        "sink-reshapes",
        "// CHECK: lk.matmul\n// CHECK-NEXT: tensor.expand_shape\n// CHECK: linalg.generic",
        WEIGHTS,
    )


def test_the_view_of_the_other_input_is_taken_apart(check: Check) -> None:
    """A residual that was flattened for an earlier product is read at its source."""
    text = flat("(d0, d1, d2) -> (d0, d1, d2)", "tensor<3x4x8xf32>").replace(
        "%y: tensor<3x4x8xf32>", "%z: tensor<12x8xf32>"
    )
    text = text.replace(
        "  %e =",
        "  %y = tensor.expand_shape %z [[0, 1], [2]] output_shape [3, 4, 8]"
        " : tensor<12x8xf32> into tensor<3x4x8xf32>\n  %e =",
    )
    check(
        text,
        "sink-reshapes",
        "// CHECK-NOT: tensor.collapse_shape\n// CHECK: ins(%{{.*}}, %arg1 : tensor<12x8xf32>",
        WEIGHTS,
    )
    assert_same_results(text, "sink-reshapes", [random_array(12, 4), random_array(12, 8, seed=1)], WEIGHTS)


COLLAPSE = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
func.func @main(%x: tensor<2x3x4xf32>, %b: tensor<12xf32>) -> tensor<2x12xf32> {
  %m = "lk.softmax"(%x) {axis = 2 : i64, log = false} : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %v = tensor.collapse_shape %m [[0], [1, 2]] : tensor<2x3x4xf32> into tensor<2x12xf32>
  %e = tensor.empty() : tensor<2x12xf32>
  %r = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%v, %b : tensor<2x12xf32>, tensor<12xf32>) outs(%e : tensor<2x12xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    INDEX
    %s = arith.addf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<2x12xf32>
  return %r : tensor<2x12xf32>
}
"""


def test_a_collapse_sinks_by_expanding_the_other_inputs(check: Check) -> None:
    text = COLLAPSE.replace("INDEX", "")
    check(
        text,
        "sink-reshapes",
        """
        // CHECK: %[[B:.*]] = tensor.expand_shape %arg1
        // CHECK: linalg.generic {{.*}}ins(%{{.*}}, %[[B]]
        // CHECK: tensor.collapse_shape
        // CHECK-NEXT: return
        """,
    )
    assert_same_results(text, "sink-reshapes", [random_array(2, 3, 4), random_array(12, seed=1)])


def test_bodies_that_read_loop_indices_stay(check: Check) -> None:
    text = COLLAPSE.replace("INDEX", "%k = linalg.index 1 : index")
    check(text, "sink-reshapes", "// CHECK: lk.softmax\n// CHECK-NEXT: tensor.collapse_shape\n// CHECK: linalg.generic")


def test_a_view_of_batch_one_beside_another_input(check: Check) -> None:
    text = flat("(d0, d1, d2) -> (d0, d1, d2)", "tensor<3x4x8xf32>")
    text = text.replace("tensor<3x4x8xf32>", "tensor<1x12x8xf32>").replace("[3, 4, 8]", "[1, 12, 8]")
    expected = """
        // CHECK: %[[M:.*]] = "lk.matmul"
        // CHECK: linalg.generic {{.*}}ins(%[[M]]
        // CHECK: tensor.expand_shape
        // CHECK-NEXT: return
    """
    check(text, "sink-reshapes", expected, WEIGHTS)
    assert_same_results(text, "sink-reshapes", [random_array(12, 4), random_array(1, 12, 8, seed=1)], WEIGHTS)


def test_a_view_of_a_single_number(check: Check) -> None:
    """What it expands from has no dims, so there are no groups."""
    text = """
#id = affine_map<(d0) -> (d0)>
#none = affine_map<() -> ()>
func.func @main(%x: tensor<f32>, %y: tensor<1xf32>) -> tensor<1xf32> {
  %e = tensor.empty() : tensor<f32>
  %n = linalg.generic {indexing_maps = [#none, #none], iterator_types = []} ins(%x : tensor<f32>)
      outs(%e : tensor<f32>) {
  ^bb0(%i: f32, %o: f32):
    %s = arith.negf %i : f32
    linalg.yield %s : f32
  } -> tensor<f32>
  %v = tensor.expand_shape %n [] output_shape [1] : tensor<f32> into tensor<1xf32>
  %d = tensor.empty() : tensor<1xf32>
  %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
      ins(%v, %y : tensor<1xf32>, tensor<1xf32>) outs(%d : tensor<1xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.subf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<1xf32>
  return %r : tensor<1xf32>
}
"""
    check(text, "sink-reshapes", "// CHECK: arith.subf\n// CHECK: tensor.expand_shape\n// CHECK-NEXT: return")


COLLAPSED = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<1x16x4xf32>, %z: tensor<OTHERxf32>) -> tensor<16x8xf32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<4x8xf32>
  %m = "lk.matmul"(%x, %w) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}
      : (tensor<1x16x4xf32>, tensor<4x8xf32>) -> tensor<1x16x8xf32>
  %v = tensor.collapse_shape %m [[0, 1], [2]] : tensor<1x16x8xf32> into tensor<16x8xf32>
  %y = tensor.collapse_shape %z [[0, 1], [2]] : tensor<OTHERxf32> into tensor<16x8xf32>
  %e = tensor.empty() : tensor<16x8xf32>
  %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%y, %v : tensor<16x8xf32>, tensor<16x8xf32>) outs(%e : tensor<16x8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.subf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<16x8xf32>
  return %r : tensor<16x8xf32>
}
"""


@pytest.mark.parametrize("other", [(4, 4, 8), (1, 16, 8), (16, 1, 8), (2, 8, 8)])
def test_a_collapse_by_the_same_groups_is_read_through_where_its_extents_are_the_same(
    check: Check, other: tuple[int, ...]
) -> None:
    """Batch 1: 16 rows are 1 x 16 of one value and 4 x 4 of another."""
    text = COLLAPSED.replace("OTHER", "x".join(map(str, other)))
    same = "ins(%arg1, %{{.*}} : tensor<1x16x8xf32>" if other == (1, 16, 8) else "tensor.expand_shape"
    check(text, "sink-reshapes", f"// CHECK: {same}", WEIGHTS)
    assert_same_results(text, "sink-reshapes", [random_array(1, 16, 4), random_array(*other, seed=1)], WEIGHTS)
