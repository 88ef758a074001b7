"""fold-constants: weights are computed lazily, large results are left, data leaves the IR."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.passes.base import PassContext
from lowerkit.passes.canonicalize.fold_constants import FoldConstants
from lowerkit.program.weights import WeightStore
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

CHAIN = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %two = arith.constant 2.0 : f32
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<32xf32>
  %v = tensor.expand_shape %w [[0, 1]] output_shape [4, 8] : tensor<32xf32> into tensor<4x8xf32>
  %e = tensor.empty() : tensor<8x4xf32>
  %t = linalg.transpose ins(%v : tensor<4x8xf32>) outs(%e : tensor<8x4xf32>) permutation = [1, 0]
  %s = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%t : tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %m = arith.mulf %i, %two : f32
    linalg.yield %m : f32
  } -> tensor<8x4xf32>
  %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %s : tensor<8x4xf32>, tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %m = arith.addf %i, %j : f32
    linalg.yield %m : f32
  } -> tensor<8x4xf32>
  return %r : tensor<8x4xf32>
}
"""


def test_a_cone_becomes_one_weight(check: Check) -> None:
    weights = {"w": random_array(32, seed=1)}
    context = check(
        CHAIN,
        "fold-constants",
        """
        // CHECK: %[[W:.*]] = "lk.weight"() {symbol = "w.generic"} : () -> tensor<8x4xf32>
        // CHECK-NOT: linalg.transpose
        // CHECK: linalg.generic {{.*}}ins(%arg0, %[[W]]
        // CHECK-NOT: linalg.generic
        """,
        weights,
    )
    np.testing.assert_array_equal(context.weights.get("w.generic"), weights["w"].reshape(4, 8).T * np.float32(2))
    assert_same_results(CHAIN, "fold-constants", [random_array(8, 4)], weights)


def test_no_data_is_read_while_folding() -> None:
    store = WeightStore()

    def refuse() -> np.ndarray:
        raise AssertionError("the weight was read")

    store.add("w", refuse, dtype="f32", shape=(32,))
    module = parse_module(CHAIN, new_context())
    assert FoldConstants().run(module, PassContext(weights=store))
    assert store.spec("w.generic") == ("f32", (8, 4))


BOMB = """
func.func @main(%x: tensor<4xf32>) -> tensor<4x1000000x1000000xf32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<4xf32>
  %e = tensor.empty() : tensor<4x1000000x1000000xf32>
  %b = linalg.broadcast ins(%w : tensor<4xf32>) outs(%e : tensor<4x1000000x1000000xf32>) dimensions = [1, 2]
  return %b : tensor<4x1000000x1000000xf32>
}
"""


def test_a_broadcast_to_terabytes_is_left_with_a_remark(check: Check) -> None:
    context = check(BOMB, "fold-constants", "// CHECK: linalg.broadcast", {"w": random_array(4)})
    assert context.remarks == [
        "fold-constants: left linalg.broadcast with 16000000000000 bytes of constant result (bound 16777216) "
        'at loc("-":5:8)'
    ]


NORM = """
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4x4096xf32>) {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<4x4096xbf16>
  %e = tensor.empty() : tensor<4x4096xf32>
  %wide = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} ins(%w : tensor<4x4096xbf16>) outs(%e : tensor<4x4096xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %f = arith.extf %a : bf16 to f32
    linalg.yield %f : f32
  } -> tensor<4x4096xf32>
  %sum = "lk.reduce"(%wide) {kind = "sum", axes = array<i64: 1>, keep_dims = false}
      : (tensor<4x4096xf32>) -> tensor<4xf32>
  return %sum, RESULT : tensor<4xf32>, tensor<4x4096xf32>
}
"""


def test_a_large_result_on_the_way_to_a_small_one_is_no_obstacle(check: Check) -> None:
    """The norm of a bf16 weight squares it in f32, which is twice as large as the weight."""
    weights = {"w": random_array(4, 4096).astype(ml_dtypes.bfloat16)}
    text = NORM.replace("RESULT", "%wide")
    context = check(text, "fold-constants{bound=1024}", "// CHECK: linalg.generic\n// CHECK: lk.reduce", weights)
    assert len(context.remarks) == 1
    text = NORM.replace(", RESULT : tensor<4xf32>, tensor<4x4096xf32>", " : tensor<4xf32>")
    text = text.replace("(tensor<4xf32>, tensor<4x4096xf32>)", "tensor<4xf32>")
    context = check(text, "fold-constants{bound=1024}", "// CHECK-NOT: linalg.generic\n// CHECK: lk.weight", weights)
    assert context.remarks == []


SHARED = """
func.func @main(%x: tensor<2x3xf32>) -> (tensor<3x2xf32>, tensor<3x2xf32>) {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<2x3xf32>
  %u = "lk.weight"() {symbol = "w"} : () -> tensor<2x3xf32>
  %e = tensor.empty() : tensor<3x2xf32>
  %a = linalg.transpose ins(%w : tensor<2x3xf32>) outs(%e : tensor<3x2xf32>) permutation = [1, 0]
  %b = linalg.transpose ins(%u : tensor<2x3xf32>) outs(%e : tensor<3x2xf32>) permutation = [1, 0]
  return %a, %b : tensor<3x2xf32>, tensor<3x2xf32>
}
"""


def test_equal_cones_share_a_weight(check: Check) -> None:
    check(
        SHARED,
        "fold-constants",
        '// CHECK: symbol = "w.transpose"\n// CHECK: symbol = "w.transpose"\n// CHECK-NOT: symbol',
        {"w": random_array(2, 3)},
    )


DATA = """
func.func @main(%x: tensor<12xi64>) -> (tensor<12xi64>, tensor<2xi64>, tensor<12xi64>) {
  %a = arith.constant dense<[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]> : tensor<12xi64>
  %b = arith.constant dense<[0, 1]> : tensor<2xi64>
  %c = arith.constant dense<7> : tensor<12xi64>
  return %a, %b, %c : tensor<12xi64>, tensor<2xi64>, tensor<12xi64>
}
"""


def test_constant_tensors_leave_the_ir_splats_and_small_ones_stay(check: Check) -> None:
    context = check(
        DATA,
        "fold-constants",
        """
        // CHECK-DAG: "lk.weight"() {symbol = "constant"}
        // CHECK-DAG: dense<[0, 1]>
        // CHECK-DAG: dense<7>
        // CHECK-NOT: 11
        // CHECK: return
        """,
    )
    np.testing.assert_array_equal(context.weights.get("constant"), np.arange(12))


SCALAR = """
func.func @main(%x: tensor<?xf32>) -> tensor<?x?xf32> {
  %z = arith.constant 0 : index
  %w = "lk.weight"() {symbol = "shape"} : () -> tensor<2xi64>
  %i = tensor.extract %w[%z] : tensor<2xi64>
  %n = arith.index_cast %i : i64 to index
  %d = tensor.dim %x, %z : tensor<?xf32>
  %m = arith.divsi %d, %n : index
  %r = tensor.expand_shape %x [[0, 1]] output_shape [%n, %m] : tensor<?xf32> into tensor<?x?xf32>
  return %r : tensor<?x?xf32>
}
"""


def test_a_shape_kept_in_a_weight_becomes_a_constant(check: Check) -> None:
    weights = {"shape": np.array([3, -1])}
    check(SCALAR, "fold-constants", "// CHECK-NOT: tensor.extract\n// CHECK: arith.constant 3 : index", weights)
    assert_same_results(SCALAR, "fold-constants", [random_array(12)], weights)


def test_inputs_are_not_constant(check: Check) -> None:
    text = CHAIN.replace('%w = "lk.weight"() {symbol = "w"} : () -> tensor<32xf32>', "").replace(
        "%x: tensor<8x4xf32>", "%x: tensor<8x4xf32>, %w: tensor<32xf32>"
    )
    check(text, "fold-constants", "// CHECK: linalg.transpose\n// CHECK-COUNT-2: linalg.generic")
