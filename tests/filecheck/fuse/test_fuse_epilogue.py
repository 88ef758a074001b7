"""fuse-epilogue: bias, activation and residual join their anchor; what must stay outside."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

HEAD = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
#swap = affine_map<(d0, d1) -> (d1, d0)>
"""
MATMUL = '"lk.matmul"(%x, %w) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}'

BIAS_RESIDUAL = (
    HEAD
    + """
func.func @main(%x: tensor<4x3xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<3x8xf32>
  %b = "lk.weight"() {symbol = "b"} : () -> tensor<8xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %m = MATMUL : (tensor<4x3xf32>, tensor<3x8xf32>) -> tensor<4x8xf32>
  %r = linalg.generic {indexing_maps = [#id, #row, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%m, %b, %y : tensor<4x8xf32>, tensor<8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %j: f32, %k: f32, %o: f32):
    %s = arith.addf %i, %j : f32
    %t = arith.addf %s, %k : f32
    %u = arith.maximumf %t, %zero : f32
    linalg.yield %u : f32
  } -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
""".replace("MATMUL", MATMUL)
)
WEIGHTS = {"w": random_array(3, 8, seed=7), "b": random_array(8, seed=8)}


def test_bias_residual_and_activation(check: Check) -> None:
    check(
        BIAS_RESIDUAL,
        "fuse-epilogue",
        """
        // CHECK: %[[R:.*]] = "lk.region"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) ({
        // CHECK-NEXT: ^bb0(%[[X:.*]]: tensor<4x3xf32>, %[[W:.*]]: tensor<3x8xf32>, %[[B:.*]]: tensor<8xf32>,
        // CHECK: arith.constant 0.0
        // CHECK: %[[M:.*]] = "lk.matmul"(%[[X]], %[[W]])
        // CHECK: linalg.generic {{.*}} ins(%[[M]], %[[B]], %{{.*}}
        // CHECK: "lk.yield"
        // CHECK: kind = "matmul"
        // CHECK: return %[[R]]
        """,
        WEIGHTS,
    )
    assert_same_results(BIAS_RESIDUAL, "fuse-epilogue", [random_array(4, 3), random_array(4, 8, seed=1)], WEIGHTS)


def test_dynamic_rows(check: Check) -> None:
    text = BIAS_RESIDUAL.replace("<4x", "<?x").replace(
        "%e = tensor.empty()",
        "%z = arith.constant 0 : index\n  %d = tensor.dim %y, %z : tensor<?x8xf32>\n  %e = tensor.empty(%d)",
    )
    check(
        text,
        "fuse-epilogue",
        """
        // CHECK: "lk.region"
        // CHECK: %[[M:.*]] = "lk.matmul"
        // CHECK: %[[D:.*]] = tensor.dim %[[M]]
        // CHECK: tensor.empty(%[[D]])
        """,
        WEIGHTS,
    )
    assert_same_results(text, "fuse-epilogue", [random_array(5, 3), random_array(5, 8, seed=1)], WEIGHTS)


TRANSPOSED = (
    HEAD
    + """
func.func @main(%x: tensor<4x3xf32>) -> tensor<8x4xf32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<3x8xf32>
  %e = tensor.empty() : tensor<8x4xf32>
  %m = MATMUL : (tensor<4x3xf32>, tensor<3x8xf32>) -> tensor<4x8xf32>
  %r = linalg.generic {indexing_maps = [#swap, #id], iterator_types = ["parallel", "parallel"]}
      ins(%m : tensor<4x8xf32>) outs(%e : tensor<8x4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = math.exp %i : f32
    linalg.yield %s : f32
  } -> tensor<8x4xf32>
  return %r : tensor<8x4xf32>
}
""".replace("MATMUL", MATMUL)
)


def test_a_transposed_read_is_no_epilogue(check: Check) -> None:
    check(
        TRANSPOSED, "fuse-epilogue", "// CHECK-NOT: lk.region\n// CHECK: lk.matmul\n// CHECK: linalg.generic", WEIGHTS
    )


TWO_ANCHORS = (
    HEAD
    + """
func.func @main(%x: tensor<4x3xf32>) -> tensor<4x8xf32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<3x8xf32>
  %v = "lk.weight"() {symbol = "v"} : () -> tensor<3x8xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %g = MATMUL : (tensor<4x3xf32>, tensor<3x8xf32>) -> tensor<4x8xf32>
  %u = MATMVL : (tensor<4x3xf32>, tensor<3x8xf32>) -> tensor<4x8xf32>
  %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<4x8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.mulf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
""".replace("MATMUL", MATMUL).replace("MATMVL", MATMUL.replace("%w", "%v"))
)


def test_of_two_anchors_the_later_one_takes_the_epilogue(check: Check) -> None:
    weights = {**WEIGHTS, "v": random_array(3, 8, seed=9)}
    check(
        TWO_ANCHORS,
        "fuse-epilogue",
        """
        // CHECK: %[[V:.*]] = "lk.weight"() {symbol = "v"}
        // CHECK: %[[G:.*]] = "lk.matmul"
        // CHECK: "lk.region"(%{{.*}}, %[[V]], %[[G]])
        """,
        weights,
    )
    assert_same_results(TWO_ANCHORS, "fuse-epilogue", [random_array(4, 3)], weights)


SHARED = (
    HEAD
    + """
func.func @main(%x: tensor<4x3xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<3x8xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %m = MATMUL : (tensor<4x3xf32>, tensor<3x8xf32>) -> tensor<4x8xf32>
  EARLY
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%m : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = math.exp %i : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  LATE
  return %r, %q : tensor<4x8xf32>, tensor<4xf32>
}
""".replace("MATMUL", MATMUL)
)
SUM = (
    '%q = "lk.reduce"(%m) {kind = "sum", axes = array<i64: 1>, keep_dims = false} : (tensor<4x8xf32>) -> tensor<4xf32>'
)


def test_another_reader_behind_makes_a_second_result(check: Check) -> None:
    text = SHARED.replace("EARLY", "").replace("LATE", SUM)
    check(text, "fuse-epilogue", '// CHECK: %[[R:.*]]:2 = "lk.region"\n// CHECK: "lk.reduce"(%[[R]]#0)', WEIGHTS)
    assert_same_results(text, "fuse-epilogue", [random_array(4, 3)], WEIGHTS)


def test_another_reader_before_keeps_them_apart(check: Check) -> None:
    text = SHARED.replace("EARLY", SUM).replace("LATE", "")
    check(text, "fuse-epilogue", "// CHECK-NOT: lk.region\n// CHECK: lk.matmul\n// CHECK-NEXT: lk.reduce", WEIGHTS)


def test_the_number_of_operands_is_bounded(check: Check) -> None:
    check(BIAS_RESIDUAL, "fuse-epilogue{max-operands=1}", "// CHECK-NOT: lk.region", WEIGHTS)
