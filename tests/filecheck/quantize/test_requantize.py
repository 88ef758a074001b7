"""requantize: sums stay integers on their way to the next op."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results
from tests.support.suite.randomness import RANDOM

Check = Callable[..., PassContext]

TEXT = """
func.func @main(%x: tensor<40x3xTYPE>) -> tensor<40x3xi8> {
  %s = "lk.weight"() {symbol = "s"} : () -> tensor<3xf64>
  %z = arith.constant dense<ZERO> : tensor<3xi32>
  %t = arith.constant dense<0.25> : tensor<f32>
  %p = arith.constant dense<7> : tensor<i32>
  %d = "lk.dequantize"(%x, %s, %z) {axis = 1 : i64, unsigned = false}
       : (tensor<40x3xTYPE>, tensor<3xf64>, tensor<3xi32>) -> tensor<40x3xf32>
  BETWEEN
  %q = "lk.quantize"(%v, %t, %p) {axis = 0 : i64, formula = "divide", maximum = 255 : i64, minimum = 0 : i64,
       storage = i8, unsigned = true} : (tensor<40x3xf32>, tensor<f32>, tensor<i32>) -> tensor<40x3xi8>
  return %q : tensor<40x3xi8>
}
"""
RELU = """
  %i = tensor.empty() : tensor<40x3xf32>
  %v = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
                       iterator_types = ["parallel", "parallel"]}
       ins(%d : tensor<40x3xf32>) outs(%i : tensor<40x3xf32>) {
  ^bb0(%e: f32, %o: f32):
    %c0 = arith.constant LOW : f32
    %c6 = arith.constant 6.0 : f32
    %g = arith.cmpf ugt, %e, %c0 : f32
    %h = arith.select %g, %e, %c0 : f32
    %k = arith.cmpf ult, %h, %c6 : f32
    %l = arith.select %k, %h, %c6 : f32
    linalg.yield %l : f32
  } -> tensor<40x3xf32>
"""
NOTHING = "%v = tensor.cast %d : tensor<40x3xf32> to tensor<40x3xf32>"


def text(between: str = "", kind: str = "i32", zero: str = "0") -> str:
    if not between:
        return TEXT.replace("BETWEEN", "").replace("%v,", "%d,").replace("TYPE", kind).replace("ZERO", zero)
    return TEXT.replace("BETWEEN", between).replace("TYPE", kind).replace("ZERO", zero)


# Ties in the first channel; the others are far from any.
WEIGHTS = {"s": np.array([0.125, 0.0311, 0.00713])}


def sums() -> np.ndarray:
    return RANDOM.integers(-3000, 3000, (40, 3)).astype(np.int32)


def test_the_factor_becomes_multiplier_and_shift(check: Check) -> None:
    context = check(
        text(),
        "requantize",
        """
        // CHECK: "lk.requant"
        // CHECK-SAME: axis = 1 : i64, maximum = 255 : i64, minimum = 0 : i64, mult_bits = 32
        // CHECK-SAME: rounding = "half_even"
        // CHECK-NOT: lk.quantize
        """,
        WEIGHTS,
    )
    multiplier, shift = (context.weights.get(name).astype(np.float64) for name in ("multiplier", "shift"))
    np.testing.assert_allclose(multiplier / 2**shift, WEIGHTS["s"] / 0.25, rtol=2.0**-31)
    assert_same_results(text(), "requantize", [sums()], WEIGHTS)


def test_bounds_become_bounds(check: Check) -> None:
    between = RELU.replace("LOW", "0.0")
    check(text(between), "requantize", "// CHECK: maximum = 31 : i64, minimum = 7 : i64", WEIGHTS)
    assert_same_results(text(between), "requantize", [sums()], WEIGHTS)


def test_options(check: Check) -> None:
    check(
        text(),
        "requantize{rounding=single mult-bits=16}",
        '// CHECK: mult_bits = 16 : i64, rounding = "single"',
        WEIGHTS,
    )


@pytest.mark.parametrize(
    ("ir_text", "weights", "reason"),
    [
        (text(zero="3"), WEIGHTS, "parameters that are no usable constants"),
        (text(), {"s": np.array([0.1, 0.0, 0.1])}, "parameters that are no usable constants"),
        (text(), {"s": np.array([0.1, 1e12, 0.1])}, "factors must be positive and below"),
    ],
)
def test_left_alone(check: Check, ir_text: str, weights: dict[str, np.ndarray], reason: str) -> None:
    context = check(ir_text, "requantize", "// CHECK: lk.quantize", weights)
    assert any(reason in remark for remark in context.remarks)


def test_sums_of_products_are_rounded_as_onnx_runtime_does(check: Check) -> None:
    product = """
    %w = "lk.weight"() {symbol = "w"} : () -> tensor<8x3xi8>
    %x = "lk.integer_matmul"(%y, %w) {transpose_rhs = false, unsigned = true}
         : (tensor<40x8xi8>, tensor<8x3xi8>) -> tensor<40x3xi32>
    """
    head, _, rest = text().partition("{\n")
    ir_text = head.replace("%x: tensor<40x3xi32>", "%y: tensor<40x8xi8>") + "{\n" + product + rest
    given = {**WEIGHTS, "w": RANDOM.integers(-128, 128, (8, 3)).astype(np.int8)}
    check(ir_text, "requantize", '// CHECK: mult_bits = 25 : i64, rounding = "float32"', given)
    check(ir_text, "requantize{mult-bits=32}", '// CHECK: mult_bits = 32 : i64, rounding = "half_even"', given)


def test_bytes_are_not_sums(check: Check) -> None:
    check(text(kind="i8"), "requantize", "// CHECK: lk.quantize", WEIGHTS)
