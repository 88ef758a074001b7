"""simplify: what computes nothing goes."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]


def test_dead_code(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %a = "lk.softmax"(%x) {axis = 1 : i64, log = false} : (tensor<4x8xf32>) -> tensor<4x8xf32>
      return %x : tensor<4x8xf32>
    }
    """
    check(text, "simplify", "// CHECK-NOT: lk.softmax\n// CHECK: return %arg0")


def test_state_writes_are_not_dead(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      "lk.state_write"(%x) {symbol = "cache"} : (tensor<4xf32>) -> ()
      return %x : tensor<4xf32>
    }
    """
    check(text, "simplify", "// CHECK: lk.state_write")


TRANSPOSES = """
func.func @main(%x: tensor<2x3x4xf32>) -> SHAPE {
  %e = tensor.empty() : tensor<4x2x3xf32>
  %a = linalg.transpose ins(%x : tensor<2x3x4xf32>) outs(%e : tensor<4x2x3xf32>) permutation = [2, 0, 1]
  %f = tensor.empty() : SHAPE
  %b = linalg.transpose ins(%a : tensor<4x2x3xf32>) outs(%f : SHAPE) permutation = PERMUTATION
  return %b : SHAPE
}
"""


def test_transposes_that_cancel(check: Check) -> None:
    text = TRANSPOSES.replace("PERMUTATION", "[1, 2, 0]").replace("SHAPE", "tensor<2x3x4xf32>")
    check(text, "simplify", "// CHECK-NOT: linalg.transpose\n// CHECK: return %arg0")


def test_transposes_that_join(check: Check) -> None:
    text = TRANSPOSES.replace("PERMUTATION", "[2, 1, 0]").replace("SHAPE", "tensor<3x2x4xf32>")
    check(text, "simplify", "// CHECK: permutation = [1, 0, 2]\n// CHECK-NOT: linalg.transpose")
    assert_same_results(text, "simplify", [random_array(2, 3, 4)])


def test_a_static_reshape_is_a_pair_of_views(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<2x3x4xf32>) -> tensor<6x4xf32> {
      %s = arith.constant dense<[6, 4]> : tensor<2xi64>
      %r = tensor.reshape %x(%s) : (tensor<2x3x4xf32>, tensor<2xi64>) -> tensor<6x4xf32>
      return %r : tensor<6x4xf32>
    }
    """
    check(text, "simplify", "// CHECK-NOT: tensor.reshape\n// CHECK: tensor.collapse_shape\n// CHECK: return")
    assert_same_results(text, "simplify", [random_array(2, 3, 4)])


def test_a_dynamic_reshape_stays(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<?xf32>, %s: tensor<2xi64>) -> tensor<?x?xf32> {
      %r = tensor.reshape %x(%s) : (tensor<?xf32>, tensor<2xi64>) -> tensor<?x?xf32>
      return %r : tensor<?x?xf32>
    }
    """
    check(text, "simplify", "// CHECK: tensor.reshape")


POWER = """
#id = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %n = arith.constant EXPONENT : i64
  %e = tensor.empty() : tensor<8xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = math.fpowi %i, %n : f32, i64
    linalg.yield %s : f32
  } -> tensor<8xf32>
  return %r : tensor<8xf32>
}
"""


def test_small_powers_are_products(check: Check) -> None:
    cube = POWER.replace("EXPONENT", "3")
    check(cube, "simplify", "// CHECK-NOT: math.fpowi\n// CHECK-COUNT-2: arith.mulf")
    assert_same_results(cube, "simplify", [random_array(8)], tolerance=1e-6)
    check(POWER.replace("EXPONENT", "7"), "simplify", "// CHECK: math.fpowi")


def test_arithmetic_on_tensors_becomes_linalg(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
      %r = arith.addf %x, %y : tensor<4xf32>
      return %r : tensor<4xf32>
    }
    """
    check(text, "simplify", "// CHECK: linalg.generic\n// CHECK: arith.addf %{{.*}} : f32")
    assert_same_results(text, "simplify", [random_array(4), random_array(4, seed=1)])
