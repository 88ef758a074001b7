"""common-subexpressions: equal ops, also those whose bodies differ in the order of operands."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

PAIR = """
#id = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %e = tensor.empty() : tensor<8xf32>
  %a = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
      ins(%x, %y : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.OP %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  %b = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
      ins(%y, %x : tensor<8xf32>, tensor<8xf32>) outs(%x : tensor<8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.OP %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  return %a, %b : tensor<8xf32>, tensor<8xf32>
}
"""


def test_swapped_operands_of_a_sum(check: Check) -> None:
    text = PAIR.replace("OP", "addf")
    check(text, "common-subexpressions", "// CHECK: %[[A:.*]] = linalg.generic\n// CHECK: return %[[A]], %[[A]]")
    assert_same_results(text, "common-subexpressions", [random_array(8), random_array(8, seed=1)])


def test_swapped_operands_of_a_difference_stay(check: Check) -> None:
    text = PAIR.replace("OP", "subf")
    check(text, "common-subexpressions", "// CHECK-COUNT-2: linalg.generic")
    assert_same_results(text, "common-subexpressions", [random_array(8), random_array(8, seed=1)])


def test_weights_of_one_name_and_lk_ops(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>, tensor<8xf32>) {
      %a = "lk.softmax"(%x) {axis = 1 : i64, log = false} : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %b = "lk.softmax"(%x) {axis = 1 : i64, log = false} : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %w = "lk.weight"() {symbol = "w"} : () -> tensor<8xf32>
      %v = "lk.weight"() {symbol = "w"} : () -> tensor<8xf32>
      return %a, %b, %w, %v : tensor<4x8xf32>, tensor<4x8xf32>, tensor<8xf32>, tensor<8xf32>
    }
    """
    check(
        text, "common-subexpressions", "// CHECK: return %[[A:.*]], %[[A]], %[[W:.*]], %[[W]] :", {"w": random_array(8)}
    )


def test_ops_with_other_attributes_stay(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
      %a = "lk.softmax"(%x) {axis = 1 : i64, log = false} : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %b = "lk.softmax"(%x) {axis = 0 : i64, log = false} : (tensor<4x4xf32>) -> tensor<4x4xf32>
      return %a, %b : tensor<4x4xf32>, tensor<4x4xf32>
    }
    """
    check(text, "common-subexpressions", "// CHECK-COUNT-2: lk.softmax")


def test_ranges_of_other_extents_stay(check: Check) -> None:
    """Two counters without inputs differ only in the extents of their destinations."""
    counter = """
      %NAME = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
          outs(%eNAME : tensor<?xi64>) {
      ^bb0(%o: i64):
        %i = linalg.index 0 : index
        %n = arith.index_cast %i : index to i64
        linalg.yield %n : i64
      } -> tensor<?xi64>
    """
    text = f"""
    func.func @main(%x: tensor<?x?xf32>) -> (tensor<?xi64>, tensor<?xi64>, tensor<?xi64>) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %d0 = tensor.dim %x, %c0 : tensor<?x?xf32>
      %d1 = tensor.dim %x, %c1 : tensor<?x?xf32>
      %ea = tensor.empty(%d0) : tensor<?xi64>
      %eb = tensor.empty(%d1) : tensor<?xi64>
      %ec = tensor.empty(%d1) : tensor<?xi64>
      {counter.replace("NAME", "a")} {counter.replace("NAME", "b")} {counter.replace("NAME", "c")}
      return %a, %b, %c : tensor<?xi64>, tensor<?xi64>, tensor<?xi64>
    }}
    """
    check(text, "common-subexpressions", "// CHECK-COUNT-2: linalg.generic\n// CHECK-NOT: linalg.generic")
    assert_same_results(text, "common-subexpressions", [random_array(3, 5)])
