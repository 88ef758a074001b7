"""channels-last: convolutions and their companions change layout between a pair of transposes."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

CONV = (
    '"lk.conv"(%x, %w) {channels_last = false, strides = array<i64: 1, 1>, padding = array<i64: 1, 1, 1, 1>, '
    "dilation = array<i64: 1, 1>, groups = 1 : i64, accumulate = f32}"
)
POOL = (
    '"lk.max_pool"(%c) {channels_last = false, kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, '
    "padding = array<i64: 0, 0, 0, 0>, dilation = array<i64: 1, 1>}"
)
NET = f"""
func.func @main(%x: tensor<2x3x6x8xf32>) -> tensor<2x4x3x4xf32> {{
  %w = "lk.weight"() {{symbol = "w"}} : () -> tensor<4x3x3x3xf32>
  %c = {CONV} : (tensor<2x3x6x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x6x8xf32>
  %p = {POOL} : (tensor<2x4x6x8xf32>) -> tensor<2x4x3x4xf32>
  return %p : tensor<2x4x3x4xf32>
}}
"""
WEIGHTS = {"w": random_array(4, 3, 3, 3, seed=5)}


def test_convolution_and_pool(check: Check) -> None:
    """Only the image and the result are transposed: the pair between the two ops is gone at once."""
    check(
        NET,
        "channels-last,simplify",
        """
        // CHECK: linalg.transpose ins(%arg0 {{.*}} permutation = [0, 2, 3, 1]
        // CHECK: "lk.conv"
        // CHECK-SAME: channels_last = true
        // CHECK-SAME: tensor<4x3x3x3xf32>) -> tensor<2x6x8x4xf32>
        // CHECK-NEXT: "lk.max_pool"
        // CHECK-SAME: channels_last = true
        // CHECK: linalg.transpose {{.*}} permutation = [0, 3, 1, 2]
        // CHECK-NEXT: return
        """,
        WEIGHTS,
    )
    assert_same_results(NET, "channels-last,simplify", [random_array(2, 3, 6, 8)], WEIGHTS)


def test_without_convolutions_nothing_changes(check: Check) -> None:
    alone = f"""
    func.func @main(%c: tensor<2x4x6x8xf32>) -> tensor<2x4x3x4xf32> {{
      %p = {POOL} : (tensor<2x4x6x8xf32>) -> tensor<2x4x3x4xf32>
      return %p : tensor<2x4x3x4xf32>
    }}
    """
    check(alone, "channels-last", "// CHECK-NOT: linalg.transpose\n// CHECK: channels_last = false")


def test_what_is_channels_last_already_stays(check: Check) -> None:
    done = NET.replace("channels_last = false", "channels_last = true").replace("2x3x6x8", "2x6x8x3")
    done = done.replace("2x4x6x8", "2x6x8x4").replace("2x4x3x4", "2x3x4x4")
    check(done, "channels-last", "// CHECK-NOT: linalg.transpose\n// CHECK: return", WEIGHTS)


def test_one_dimension_and_group_norm(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<2x4x9xf32>) -> tensor<2x6x9xf32> {
      %w = "lk.weight"() {symbol = "w"} : () -> tensor<6x4x3xf32>
      %c = "lk.conv"(%x, %w) {channels_last = false, strides = array<i64: 1>, padding = array<i64: 1, 1>,
        dilation = array<i64: 1>, groups = 1 : i64, accumulate = f32}
        : (tensor<2x4x9xf32>, tensor<6x4x3xf32>) -> tensor<2x6x9xf32>
      %g = "lk.group_norm"(%c) {groups = 2 : i64, epsilon = 1.0e-5 : f64, channels_last = false,
        operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<2x6x9xf32>) -> tensor<2x6x9xf32>
      return %g : tensor<2x6x9xf32>
    }
    """
    weights = {"w": random_array(6, 4, 3, seed=5)}
    check(text, "channels-last,simplify", "// CHECK-COUNT-2: linalg.transpose\n// CHECK-NOT: linalg.transpose", weights)
    assert_same_results(text, "channels-last,simplify", [random_array(2, 4, 9)], weights, tolerance=1e-6)
