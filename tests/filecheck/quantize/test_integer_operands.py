"""integer-operands: plain products of bytes get the operands that kernels take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results
from tests.support.suite.randomness import RANDOM

Check = Callable[..., PassContext]

MATMUL = """
func.func @main(%x: tensor<5x6xi8>) -> tensor<5x3xi32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<SHAPExi8>
  %m = "lk.integer_matmul"(%x, %w) {transpose_rhs = TRANSPOSED, unsigned = UNSIGNED}
       : (tensor<5x6xi8>, tensor<SHAPExi8>) -> tensor<5x3xi32>
  return %m : tensor<5x3xi32>
}
"""
CONV = """
func.func @main(%x: tensor<1xCHANNELSx5x6xi8>) -> tensor<1x4x5x6xi32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<4xGROUPEDx3x3xi8>
  %m = "lk.integer_conv"(%x, %w) {channels_last = false, strides = array<i64: 1, 1>,
       padding = array<i64: 1, 1, 1, 1>, dilation = array<i64: 1, 1>, groups = GROUPS : i64,
       padding_value = -5 : i64, unsigned = false}
       : (tensor<1xCHANNELSx5x6xi8>, tensor<4xGROUPEDx3x3xi8>) -> tensor<1x4x5x6xi32>
  return %m : tensor<1x4x5x6xi32>
}
"""


def conv(channels: int, groups: int) -> str:
    text = CONV.replace("GROUPED", str(channels // groups)).replace("GROUPS", str(groups))
    return text.replace("CHANNELS", str(channels))


def random_bytes(*shape: int) -> np.ndarray:
    return RANDOM.integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("unsigned", ["true", "false"])
def test_matmul(check: Check, unsigned: str, transposed: bool) -> None:
    shape = (3, 6) if transposed else (6, 3)
    text = MATMUL.replace("UNSIGNED", unsigned).replace("TRANSPOSED", str(transposed).lower())
    text = text.replace("SHAPE", "x".join(map(str, shape)))
    given = {"w": random_bytes(*shape)}
    wide = "3x8" if transposed else "8x3"
    check(text, "integer-operands", f"// CHECK: unsigned = true}} : (tensor<5x8xi8>, tensor<{wide}xi8>)", given)
    assert_same_results(text, "integer-operands", [random_bytes(5, 6)], given)


@pytest.mark.parametrize(("channels", "groups", "wide"), [(6, 1, "1x8x5x6"), (4, 4, "1x4x5x6"), (16, 4, "1x16x5x6")])
def test_conv(check: Check, channels: int, groups: int, wide: str) -> None:
    text, given = conv(channels, groups), {"w": random_bytes(4, channels // groups, 3, 3)}
    check(
        text,
        "integer-operands",
        f"""
        // CHECK: arith.xori
        // CHECK: "lk.integer_conv"{{{{.*}}}} padding_value = 123 : i64{{{{.*}}}} unsigned = true}} : (tensor<{wide}xi8>
        // CHECK: arith.addi
        """,
        given,
    )
    assert_same_results(text, "integer-operands", [random_bytes(1, channels, 5, 6)], given)


def test_groups_of_odd_sizes_keep_their_channels(check: Check) -> None:
    text, given = conv(12, 4), {"w": random_bytes(4, 3, 3, 3)}
    check(text, "integer-operands", "// CHECK: unsigned = true} : (tensor<1x12x5x6xi8>, tensor<4x3x3x3xi8>)", given)
    assert_same_results(text, "integer-operands", [random_bytes(1, 12, 5, 6)], given)


def test_what_is_ready_stays(check: Check) -> None:
    text = MATMUL.replace("UNSIGNED", "true").replace("TRANSPOSED", "false").replace("SHAPE", "6x3")
    text = text.replace("5x6", "5x8").replace("6x3", "8x3")
    context = check(text, "integer-operands", '// CHECK: symbol = "w"', {"w": random_bytes(8, 3)})
    assert [*context.weights] == ["w"]


def test_a_right_operand_that_is_computed_is_left_alone(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<5x6xi8>, %w: tensor<6x3xi8>) -> tensor<5x3xi32> {
      %m = "lk.integer_matmul"(%x, %w) {transpose_rhs = false, unsigned = false}
           : (tensor<5x6xi8>, tensor<6x3xi8>) -> tensor<5x3xi32>
      return %m : tensor<5x3xi32>
    }
    """
    check(text, "integer-operands", "// CHECK: unsigned = false} : (tensor<5x6xi8>, tensor<6x3xi8>)")


ADDED = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#column = affine_map<(d0, d1) -> (d1)>
func.func @main(%x: tensor<5x6xi8>) -> tensor<5x3xi32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<6x3xi8>
  %b = "lk.weight"() {symbol = "b"} : () -> tensor<3xi32>
  %m = "lk.integer_matmul"(%x, %w) {transpose_rhs = false, unsigned = false}
       : (tensor<5x6xi8>, tensor<6x3xi8>) -> tensor<5x3xi32>
  %e = tensor.empty() : tensor<5x3xi32>
  %a = linalg.generic {indexing_maps = [#id, #column, #id], iterator_types = ["parallel", "parallel"]}
      ins(%m, %b : tensor<5x3xi32>, tensor<3xi32>) outs(%e : tensor<5x3xi32>) {
  ^bb0(%s: i32, %c: i32, %o: i32):
    BODY
    linalg.yield %r : i32
  } -> tensor<5x3xi32>
  return %a : tensor<5x3xi32>
}
"""
SHIFTED = "%k = arith.constant 7 : i32\n%t = arith.shli %s, %k : i32\n%r = arith.addi %t, %c : i32"


@pytest.mark.parametrize(
    ("body", "generics"),
    [
        ("%r = arith.addi %s, %c : i32", 1),
        (SHIFTED, 1),
        ("%r = arith.muli %s, %c : i32", 2),
        ("%t = arith.addi %s, %c : i32\n%r = arith.muli %t, %c : i32", 2),
        ("%t = arith.addi %s, %c : i32\n%r = arith.muli %t, %s : i32", 2),
    ],
)
def test_the_flip_joins_the_constant_that_is_added_next(check: Check, body: str, generics: int) -> None:
    """Beside the flip itself; where the sums or the constant are read otherwise, it is subtracted before."""
    text = ADDED.replace("BODY", body)
    given = {"w": random_bytes(6, 3), "b": RANDOM.integers(-(2**30), 2**30, 3).astype(np.int32)}
    found = "\n".join(["// CHECK: linalg.generic"] * (generics + 1) + ["// CHECK-NOT: linalg.generic"])
    check(text, "integer-operands", found, given)
    assert_same_results(text, "integer-operands", [random_bytes(5, 6)], given)
