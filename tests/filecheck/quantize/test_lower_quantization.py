"""lower-quantization: what is left of quantization becomes elementwise ops, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results
from tests.support.suite.randomness import RANDOM

Check = Callable[..., PassContext]

TEXT = """
func.func @main(%x: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %s = arith.constant dense<0.05> : tensor<f32>
  %z = arith.constant dense<3> : tensor<i32>
  %m = arith.constant dense<1500000000> : tensor<i32>
  %n = arith.constant dense<31> : tensor<i32>
  %q = "lk.quantize"(%x, %s, %z) {axis = 0 : i64, formula = "divide", maximum = 127 : i64, minimum = -128 : i64,
       storage = i8, unsigned = false} : (tensor<6x4xf32>, tensor<f32>, tensor<i32>) -> tensor<6x4xi8>
  %r = "lk.requant"(%q, %m, %n, %z) {axis = 0 : i64, rounding = "half_away", mult_bits = 32 : i64,
       minimum = -128 : i64, maximum = 127 : i64, unsigned_input = false, unsigned = false, storage = i8}
       : (tensor<6x4xi8>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<6x4xi8>
  %d = "lk.dequantize"(%r, %s, %z) {axis = 0 : i64, unsigned = false}
       : (tensor<6x4xi8>, tensor<f32>, tensor<i32>) -> tensor<6x4xf32>
  return %d : tensor<6x4xf32>
}
"""


def test_lowers_all_three(check: Check) -> None:
    check(
        TEXT,
        "lower-quantization",
        """
        // CHECK: math.roundeven
        // CHECK: arith.shrsi
        // CHECK: arith.sitofp
        // CHECK-NOT: lk.
        """,
    )
    x = RANDOM.standard_normal((6, 4)).astype(np.float32) * 4
    assert_same_results(TEXT, "lower-quantization", [x])


def test_leaves_products_alone(check: Check) -> None:
    check(
        """
        func.func @main(%x: tensor<6x4xi8>, %y: tensor<4x3xi8>) -> tensor<6x3xi32> {
          %m = "lk.integer_matmul"(%x, %y) {transpose_rhs = false, unsigned = true}
               : (tensor<6x4xi8>, tensor<4x3xi8>) -> tensor<6x3xi32>
          return %m : tensor<6x3xi32>
        }
        """,
        "lower-quantization",
        "// CHECK: lk.integer_matmul",
    )
