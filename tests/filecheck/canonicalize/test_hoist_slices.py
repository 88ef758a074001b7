"""hoist-slices: a product that is cut into pieces becomes a product for each piece."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

QKV = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
func.func @main(%x: tensor<6x4xf32>) -> (tensor<2x3x8xf32>, tensor<2x3x16xf32>) {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<WEIGHTxf32>
  %b = "lk.weight"() {symbol = "b"} : () -> tensor<24xf32>
  %m = "lk.matmul"(%x, %w) {transpose_lhs = false, transpose_rhs = FLAG, accumulate = f32}
      : (tensor<6x4xf32>, tensor<WEIGHTxf32>) -> tensor<6x24xf32>
  %e = tensor.empty() : tensor<6x24xf32>
  %s = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%m, %b : tensor<6x24xf32>, tensor<24xf32>) outs(%e : tensor<6x24xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %t = arith.addf %i, %j : f32
    linalg.yield %t : f32
  } -> tensor<6x24xf32>
  %v = tensor.expand_shape %s [[0, 1], [2]] output_shape [2, 3, 24] : tensor<6x24xf32> into tensor<2x3x24xf32>
  %q = tensor.extract_slice %v[0, 0, 0] [2, 3, 8] [1, 1, 1] : tensor<2x3x24xf32> to tensor<2x3x8xf32>
  %k = tensor.extract_slice %v[0, 0, START] [2, 3, 16] [1, 1, 1] : tensor<2x3x24xf32> to tensor<2x3x16xf32>
  return %q, %k : tensor<2x3x8xf32>, tensor<2x3x16xf32>
}
"""


def qkv(weight: str, flag: str, start: int) -> str:
    return QKV.replace("WEIGHT", weight).replace("FLAG", flag).replace("START", str(start))


def test_splits_product_and_bias(check: Check) -> None:
    for text, shape in ((qkv("4x24", "false", 8), (4, 24)), (qkv("24x4", "true", 8), (24, 4))):
        weights = {"w": random_array(*shape, seed=5), "b": random_array(24, seed=6)}
        check(
            text,
            "hoist-slices,fold-constants",
            """
            // CHECK-NOT: tensor.extract_slice
            // CHECK: "lk.matmul"
            // CHECK-SAME: -> tensor<6x8xf32>
            // CHECK: "lk.matmul"
            // CHECK-SAME: -> tensor<6x16xf32>
            // CHECK-NOT: tensor.extract_slice
            """,
            weights,
        )
        assert_same_results(text, "hoist-slices,fold-constants", [random_array(6, 4)], weights, tolerance=1e-6)


def test_overlapping_slices_stay(check: Check) -> None:
    """Computing the shared columns twice would cost more than cutting them."""
    weights = {"w": random_array(4, 24), "b": random_array(24)}
    check(qkv("4x24", "false", 4), "hoist-slices", "// CHECK-COUNT-2: tensor.extract_slice", weights)


def test_narrow_slices_stay(check: Check) -> None:
    weights = {"w": random_array(4, 24), "b": random_array(24)}
    check(qkv("4x24", "false", 8), "hoist-slices{min-width=9}", "// CHECK-COUNT-2: tensor.extract_slice", weights)


def test_slices_of_rows_stay(check: Check) -> None:
    text = qkv("4x24", "false", 8).replace("%v[0, 0, 0] [2, 3, 8]", "%v[0, 0, 0] [1, 3, 24]")
    text = text.replace("tensor<2x3x8xf32>", "tensor<1x3x24xf32>")
    weights = {"w": random_array(4, 24), "b": random_array(24)}
    check(text, "hoist-slices", "// CHECK-COUNT-2: tensor.extract_slice", weights)


def test_a_computed_right_operand_stays(check: Check) -> None:
    text = qkv("4x24", "false", 8).replace('  %w = "lk.weight"() {symbol = "w"} : () -> tensor<4x24xf32>\n', "")
    text = text.replace("%x: tensor<6x4xf32>", "%x: tensor<6x4xf32>, %w: tensor<4x24xf32>")
    check(text, "hoist-slices", "// CHECK-COUNT-2: tensor.extract_slice", {"b": random_array(24)})
