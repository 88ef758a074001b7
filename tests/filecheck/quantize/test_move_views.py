"""move-views: nothing but integers between a quantize op and the product that reads it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array
from tests.support.suite.randomness import RANDOM

Check = Callable[..., PassContext]

PAIR = """
func.func @main(%x: tensor<2x6xf32>, %w: tensor<3x4xf32>) -> tensor<4x4xf32> {
  %s = arith.constant dense<0.05> : tensor<f32>
  %t = arith.constant dense<SECOND> : tensor<f32>
  %z = arith.constant dense<3> : tensor<i32>
  %q = "lk.quantize"(%x, %s, %z) {axis = 0 : i64, formula = "divide", maximum = 127 : i64, minimum = -128 : i64,
       storage = i8, unsigned = false} : (tensor<2x6xf32>, tensor<f32>, tensor<i32>) -> tensor<2x6xi8>
  %d = "lk.dequantize"(%q, %s, %z) {axis = 0 : i64, unsigned = false}
       : (tensor<2x6xi8>, tensor<f32>, tensor<i32>) -> tensor<2x6xf32>
  %e = tensor.expand_shape %d [[0], [1, 2]] output_shape [2, 2, 3] : tensor<2x6xf32> into tensor<2x2x3xf32>
  %c = tensor.collapse_shape %e [[0, 1], [2]] : tensor<2x2x3xf32> into tensor<4x3xf32>
  %r = "lk.quantize"(%c, %t, %z) {axis = 0 : i64, formula = "divide", maximum = HIGH : i64, minimum = -128 : i64,
       storage = i8, unsigned = false} : (tensor<4x3xf32>, tensor<f32>, tensor<i32>) -> tensor<4x3xi8>
  %f = "lk.dequantize"(%r, %t, %z) {axis = 0 : i64, unsigned = false}
       : (tensor<4x3xi8>, tensor<f32>, tensor<i32>) -> tensor<4x3xf32>
  %m = "lk.matmul"(%f, %w) {accumulate = f32, transpose_lhs = false, transpose_rhs = false}
       : (tensor<4x3xf32>, tensor<3x4xf32>) -> tensor<4x4xf32>
  return %m : tensor<4x4xf32>
}
"""
INPUTS = [random_array(2, 6), random_array(3, 4, seed=1)]


def test_views_move_and_equal_pairs_cancel(check: Check) -> None:
    text = PAIR.replace("SECOND", "0.05").replace("HIGH", "127")
    check(
        text,
        "move-views",
        """
        // CHECK: "lk.quantize"
        // CHECK-NOT: "lk.quantize"
        // CHECK: tensor.expand_shape {{.*}} tensor<2x6xi8>
        // CHECK: tensor.collapse_shape {{.*}} tensor<2x2x3xi8>
        // CHECK: "lk.dequantize"
        // CHECK-NEXT: "lk.matmul"
        """,
    )
    assert_same_results(text, "move-views", INPUTS)


@pytest.mark.parametrize(("second", "high"), [("0.06", "127"), ("0.05", "7")])
def test_other_parameters_or_a_narrower_range_stay(check: Check, second: str, high: str) -> None:
    text = PAIR.replace("SECOND", second).replace("HIGH", high)
    check(text, "move-views", '// CHECK-COUNT-2: "lk.quantize"')
    assert_same_results(text, "move-views", INPUTS)


def test_a_scale_per_channel_does_not_move(check: Check) -> None:
    check(
        """
        func.func @main(%x: tensor<6x4xi8>, %s: tensor<6xf32>, %z: tensor<6xi32>, %w: tensor<4x3xf32>)
            -> tensor<2x3x3xf32> {
          %d = "lk.dequantize"(%x, %s, %z) {axis = 0 : i64, unsigned = false}
               : (tensor<6x4xi8>, tensor<6xf32>, tensor<6xi32>) -> tensor<6x4xf32>
          %e = tensor.expand_shape %d [[0, 1], [2]] output_shape [2, 3, 4] : tensor<6x4xf32> into tensor<2x3x4xf32>
          %m = "lk.matmul"(%e, %w) {accumulate = f32, transpose_lhs = false, transpose_rhs = false}
               : (tensor<2x3x4xf32>, tensor<4x3xf32>) -> tensor<2x3x3xf32>
          return %m : tensor<2x3x3xf32>
        }
        """,
        "move-views",
        """
        // CHECK: "lk.dequantize"
        // CHECK-NEXT: tensor.expand_shape {{.*}} tensor<6x4xf32>
        """,
    )


def test_rows_of_a_table_are_gathered_as_bytes(check: Check) -> None:
    text = """
    func.func @main(%i: tensor<2x3xi64>) -> tensor<2x3x4xf32> {
      %t = "lk.weight"() {symbol = "t"} : () -> tensor<9x4xi8>
      %s = arith.constant dense<0.05> : tensor<f32>
      %z = arith.constant dense<3> : tensor<i32>
      %d = "lk.dequantize"(%t, %s, %z) {axis = 0 : i64, unsigned = true}
           : (tensor<9x4xi8>, tensor<f32>, tensor<i32>) -> tensor<9x4xf32>
      %g = "lk.gather"(%d, %i) {axis = 0 : i64} : (tensor<9x4xf32>, tensor<2x3xi64>) -> tensor<2x3x4xf32>
      return %g : tensor<2x3x4xf32>
    }
    """
    weights = {"t": RANDOM.integers(-128, 128, (9, 4)).astype(np.int8)}
    check(text, "move-views", '// CHECK: "lk.gather"({{.*}}tensor<9x4xi8>\n// CHECK: "lk.dequantize"', weights)
    assert_same_results(text, "move-views", [np.array([[0, 8, 3], [1, 1, 7]])], weights)
