"""integer-products: products of dequantized operands become integer ones, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results
from tests.support.suite.randomness import RANDOM

Check = Callable[..., PassContext]

MATMUL = """
func.func @main(%x: tensor<5x6xi8>) -> tensor<5x3xf32> {
  %sx = arith.constant dense<SCALE> : tensor<f32>
  %zx = arith.constant dense<POINT> : tensor<i32>
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<6x3xi8>
  %sw = "lk.weight"() {symbol = "sw"} : () -> tensor<3xf32>
  %zw = "lk.weight"() {symbol = "zw"} : () -> tensor<3xi32>
  %b = "lk.weight"() {symbol = "b"} : () -> tensor<3xf32>
  %a = "lk.dequantize"(%x, %sx, %zx) {axis = 0 : i64, unsigned = UNSIGNED}
       : (tensor<5x6xi8>, tensor<f32>, tensor<i32>) -> tensor<5x6xf32>
  %c = "lk.dequantize"(%w, %sw, %zw) {axis = 1 : i64, unsigned = false}
       : (tensor<6x3xi8>, tensor<3xf32>, tensor<3xi32>) -> tensor<6x3xf32>
  %m = "lk.matmul"(%a, %c) {accumulate = f32, transpose_lhs = false, transpose_rhs = false}
       : (tensor<5x6xf32>, tensor<6x3xf32>) -> tensor<5x3xf32>
  %i = tensor.empty() : tensor<5x3xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (n)>,
                                        affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
       ins(%m, %b : tensor<5x3xf32>, tensor<3xf32>) outs(%i : tensor<5x3xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %t = arith.addf %p, %q : f32
    linalg.yield %t : f32
  } -> tensor<5x3xf32>
  return %r : tensor<5x3xf32>
}
"""

CONV = """
func.func @main(%x: tensor<1xCHANNELSx5x6xi8>) -> tensor<1x4x5x6xf32> {
  %sx = arith.constant dense<0.5> : tensor<f32>
  %zx = arith.constant dense<130> : tensor<i32>
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<4xGROUPEDx3x3xi8>
  %sw = arith.constant dense<0.25> : tensor<f32>
  %zw = arith.constant dense<ZERO> : tensor<i32>
  %a = "lk.dequantize"(%x, %sx, %zx) {axis = 0 : i64, unsigned = true}
       : (tensor<1xCHANNELSx5x6xi8>, tensor<f32>, tensor<i32>) -> tensor<1xCHANNELSx5x6xf32>
  %c = "lk.dequantize"(%w, %sw, %zw) {axis = 0 : i64, unsigned = false}
       : (tensor<4xGROUPEDx3x3xi8>, tensor<f32>, tensor<i32>) -> tensor<4xGROUPEDx3x3xf32>
  %m = "lk.conv"(%a, %c) {accumulate = f32, channels_last = false, strides = array<i64: 1, 1>,
       padding = array<i64: 1, 1, 1, 1>, dilation = array<i64: 1, 1>, groups = GROUPS : i64}
       : (tensor<1xCHANNELSx5x6xf32>, tensor<4xGROUPEDx3x3xf32>) -> tensor<1x4x5x6xf32>
  return %m : tensor<1x4x5x6xf32>
}
"""

# Parameters of the activation that are computed.
DYNAMIC = """
func.func @main(%x: tensor<5x6xi8>, %sx: tensor<f32>, %zx: tensor<i32>) -> tensor<5x3xf32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<6x3xi8>
  %sw = "lk.weight"() {symbol = "sw"} : () -> tensor<3xf32>
  %zw = "lk.weight"() {symbol = "zw"} : () -> tensor<3xi32>
  %a = "lk.dequantize"(%x, %sx, %zx) {axis = 0 : i64, unsigned = UNSIGNED}
       : (tensor<5x6xi8>, tensor<f32>, tensor<i32>) -> tensor<5x6xf32>
  %c = "lk.dequantize"(%w, %sw, %zw) {axis = 1 : i64, unsigned = false}
       : (tensor<6x3xi8>, tensor<3xf32>, tensor<3xi32>) -> tensor<6x3xf32>
  %m = "lk.matmul"(%a, %c) {accumulate = f32, transpose_lhs = false, transpose_rhs = false}
       : (tensor<5x6xf32>, tensor<6x3xf32>) -> tensor<5x3xf32>
  return %m : tensor<5x3xf32>
}
"""
DYNAMIC_CONV = """
func.func @main(%x: tensor<1x3x5x6xi8>, %sx: tensor<f32>, %zx: tensor<i32>) -> tensor<1x4x5x6xf32> {
""" + CONV.partition("dense<130> : tensor<i32>")[2].replace("CHANNELS", "3").replace("GROUPED", "3").replace(
    "GROUPS", "1"
).replace("ZERO", "0")


def weights(zero: int = 0, **changes: np.ndarray) -> Mapping[str, np.ndarray]:
    # Powers of two: then products and sums of the float model are exact, and equal bits can be asked for.
    return {
        "w": RANDOM.integers(-128, 128, (6, 3)).astype(np.int8),
        "sw": np.array([0.5, 0.25, 2.0], np.float32),
        "zw": np.full(3, zero, np.int32),
        "b": np.array([1.5, -3.0, 64.0], np.float32),
        **changes,
    }


def matmul(scale: str = "0.5", point: str = "9", unsigned: str = "true") -> str:
    return MATMUL.replace("SCALE", scale).replace("POINT", point).replace("UNSIGNED", unsigned)


@pytest.mark.parametrize(("unsigned", "point"), [("true", "9"), ("false", "-17"), ("true", "0"), ("false", "0")])
def test_matmul(check: Check, unsigned: str, point: str) -> None:
    text = matmul(point=point, unsigned=unsigned)
    check(
        text,
        "integer-products",
        f"""
        // CHECK: "lk.integer_matmul"({{{{.*}}}}) {{transpose_rhs = false, unsigned = {unsigned}}}
        // CHECK-SAME: (tensor<5x6xi8>, tensor<6x3xi8>) -> tensor<5x3xi32>
        // CHECK: arith.addi
        // CHECK: "lk.dequantize"({{{{.*}}}}) {{axis = 1 : i64, unsigned = false}} : (tensor<5x3xi32>, tensor<3xf64>
        // CHECK-NOT: lk.matmul
        """,
        weights(),
    )
    x = RANDOM.integers(-128, 128, (5, 6)).astype(np.int8)
    assert_same_results(text, "integer-products", [x], weights())


def conv(channels: int, groups: int = 1, zero: int = 0) -> str:
    text = CONV.replace("GROUPED", str(channels // groups)).replace("CHANNELS", str(channels))
    return text.replace("GROUPS", str(groups)).replace("ZERO", str(zero))


def filters(channels: int) -> Mapping[str, np.ndarray]:
    return {"w": RANDOM.integers(-128, 128, (4, channels, 3, 3)).astype(np.int8)}


def test_conv_pads_with_the_zero_point(check: Check) -> None:
    text, given = conv(3), filters(3)
    check(
        text,
        "integer-products",
        """
        // CHECK-NOT: tensor.pad
        // CHECK: "lk.integer_conv"
        // CHECK-SAME: padding_value = 130 : i64
        // CHECK-SAME: (tensor<1x3x5x6xi8>, tensor<4x3x3x3xi8>) -> tensor<1x4x5x6xi32>
        // CHECK-NOT: lk.conv
        """,
        given,
    )
    x = RANDOM.integers(-128, 128, (1, 3, 5, 6)).astype(np.int8)
    assert_same_results(text, "integer-products", [x], given)


@pytest.mark.parametrize("zero", [0, -37])
def test_depthwise_is_not_padded_to_four(check: Check, zero: int) -> None:
    text, given = conv(4, groups=4, zero=zero), filters(1)
    check(
        text,
        "integer-products",
        """
        // CHECK-NOT: tensor.pad
        // CHECK: "lk.integer_conv"
        // CHECK-SAME: groups = 4 : i64
        // CHECK-SAME: (tensor<1x4x5x6xi8>, tensor<4x1x3x3xi8>) -> tensor<1x4x5x6xi32>
        // CHECK-NOT: lk.conv
        """,
        given,
    )
    x = RANDOM.integers(-128, 128, (1, 4, 5, 6)).astype(np.int8)
    assert_same_results(text, "integer-products", [x], given)


def test_weights_that_are_not_symmetric_need_the_sum_of_the_other_side(check: Check) -> None:
    given = weights(zw=np.array([-128, 3, 127], np.int32))
    check(
        matmul(),
        "integer-products",
        """
        // CHECK: "lk.integer_matmul"{{.*}} (tensor<5x6xi8>, tensor<6x3xi8>)
        // CHECK: "lk.integer_matmul"{{.*}} (tensor<5x6xi8>, tensor<6x1xi8>)
        // CHECK-NOT: lk.matmul
        """,
        given,
    )
    x = RANDOM.integers(-128, 128, (5, 6)).astype(np.int8)
    assert_same_results(matmul(), "integer-products", [x], given)
    x = RANDOM.integers(-128, 128, (1, 3, 5, 6)).astype(np.int8)
    assert_same_results(conv(3, zero=99), "integer-products", [x], filters(3))


@pytest.mark.parametrize("unsigned", ["true", "false"])
@pytest.mark.parametrize("zero", [0, 77])
def test_parameters_at_run_time(check: Check, unsigned: str, zero: int) -> None:
    text = DYNAMIC.replace("UNSIGNED", unsigned)
    check(
        text,
        "integer-products",
        f"""
        // CHECK: "lk.integer_matmul"({{{{.*}}}}) {{transpose_rhs = false, unsigned = {unsigned}}}
        // CHECK: arith.sitofp
        // CHECK-NOT: lk.dequantize
        // CHECK-NOT: lk.matmul
        """,
        weights(zero),
    )
    x = RANDOM.integers(-128, 128, (5, 6)).astype(np.int8)
    point = 131 if unsigned == "true" else -7
    assert_same_results(
        text, "integer-products", [x, np.array(0.25, np.float32), np.array(point, np.int32)], weights(zero)
    )


@pytest.mark.parametrize(
    ("text", "given", "reason"),
    [
        (matmul().replace("6x3x", "5000x3x").replace("5x6x", "5x5000x"),
         weights(zero=1, w=np.zeros((5000, 3), np.int8)), "sums of 5000 products with a weight that is not symmetric"),
        (conv(8, groups=2, zero=1), filters(4), "groups of a weight that is not symmetric"),
        (conv(6, groups=2), filters(3), "3 channels a group"),
        (DYNAMIC_CONV, filters(3), "padding with a zero point that is computed"),
        (DYNAMIC.replace("UNSIGNED", "true").replace("%sx: tensor<f32>, %zx: tensor<i32>",
         "%sx: tensor<5xf32>, %zx: tensor<5xi32>").replace("tensor<f32>, tensor<i32>", "tensor<5xf32>, tensor<5xi32>"),
         weights(), "scales that are computed, for each row or channel"),
        (matmul(scale="-0.5"), weights(), "not a positive constant"),
        (matmul(), weights(sw=np.array([0.5, np.nan, 1], np.float32)), "not a positive constant"),
        (matmul().replace("{axis = 1 : i64, unsigned = false}\n       : (tensor<6x3xi8>, tensor<3xf32>, tensor<3xi32>)",
         "{axis = 0 : i64, unsigned = false}\n       : (tensor<6x3xi8>, tensor<6xf32>, tensor<6xi32>)")
         .replace("() -> tensor<3xi32>", "() -> tensor<6xi32>")
         .replace('"sw"} : () -> tensor<3xf32>', '"sw"} : () -> tensor<6xf32>'),
         weights(sw=np.ones(6, np.float32), zw=np.zeros(6, np.int32)), "a scale per input channel"),
    ],
)  # fmt: skip
def test_left_in_floats(check: Check, text: str, given: Mapping[str, np.ndarray], reason: str) -> None:
    context = check(text, "integer-products", "// CHECK: lk.{{matmul|conv}}", given)
    assert any(reason in remark for remark in context.remarks), context.remarks


def test_a_product_of_floats_is_not_concerned(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<5x6xf32>, %y: tensor<6x3xf32>) -> tensor<5x3xf32> {
      %m = "lk.matmul"(%x, %y) {accumulate = f32, transpose_lhs = false, transpose_rhs = false}
           : (tensor<5x6xf32>, tensor<6x3xf32>) -> tensor<5x3xf32>
      return %m : tensor<5x3xf32>
    }
    """
    assert not check(text, "integer-products", "// CHECK: lk.matmul").remarks
