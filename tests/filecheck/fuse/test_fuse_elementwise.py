"""fuse-elementwise: chains, graphs, broadcasts; what must not be merged."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

CHAIN = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
func.func @main(%x: tensor<4x8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<4x8xf32>
  %0 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %b : tensor<4x8xf32>, tensor<8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.addf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  %1 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%0 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = math.exp %i : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  %2 = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%0, %1 : tensor<4x8xf32>, tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.mulf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}
"""


def test_merges_a_diamond(check: Check) -> None:
    check(
        CHAIN,
        "fuse-elementwise",
        """
        // CHECK: linalg.generic
        // CHECK-SAME: ins(%{{.*}}, %{{.*}} : tensor<4x8xf32>, tensor<8xf32>)
        // CHECK: arith.addf
        // CHECK-NEXT: math.exp
        // CHECK-NEXT: arith.mulf
        // CHECK-NOT: linalg.generic
        """,
    )
    assert_same_results(CHAIN, "fuse-elementwise", [random_array(4, 8), random_array(8, seed=1)])


SHARED = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
  %e = tensor.empty() : tensor<4x8xf32>
  %0 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = arith.mulf %i, %i : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  %1 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%0 : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = math.exp %i : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  %r = "lk.reduce"(%0) {kind = "sum", axes = array<i64: 1>, keep_dims = false} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %1, %r : tensor<4x8xf32>, tensor<4xf32>
}
"""


def test_a_value_read_later_becomes_a_second_result(check: Check) -> None:
    check(
        SHARED,
        "fuse-elementwise",
        """
        // CHECK: %[[R:.*]]:2 = linalg.generic
        // CHECK: linalg.yield %{{.*}}, %{{.*}} : f32, f32
        // CHECK: "lk.reduce"(%[[R]]#1)
        """,
    )
    assert_same_results(SHARED, "fuse-elementwise", [random_array(4, 8)])


READ_BETWEEN = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#col = affine_map<(d0, d1) -> (d0)>
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<4x8xf32>
  %0 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = arith.mulf %i, %i : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  %r = "lk.reduce"(%0) {kind = "sum", axes = array<i64: 1>, keep_dims = false} : (tensor<4x8xf32>) -> tensor<4xf32>
  %1 = linalg.generic {indexing_maps = [#id, #col, #id], iterator_types = ["parallel", "parallel"]}
      ins(%0, %r : tensor<4x8xf32>, tensor<4xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.divf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
"""


def test_a_value_read_before_the_root_stays(check: Check) -> None:
    """The reduction lies between the two: merging would make it read its own result."""
    check(
        READ_BETWEEN,
        "fuse-elementwise",
        """
        // CHECK: linalg.generic
        // CHECK: lk.reduce
        // CHECK: linalg.generic
        """,
    )
    assert_same_results(READ_BETWEEN, "fuse-elementwise", [random_array(4, 8)])


BROADCAST = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
#one = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<4x8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %v = tensor.empty() : tensor<8xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %0 = linalg.generic {indexing_maps = [#one, #one], iterator_types = ["parallel"]}
      ins(%b : tensor<8xf32>) outs(%v : tensor<8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = BODY %i ARG: f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  %1 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %0 : tensor<4x8xf32>, tensor<8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.addf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
"""


def test_cheap_work_is_repeated_in_larger_loops_expensive_work_is_not(check: Check) -> None:
    cheap = BROADCAST.replace("BODY", "arith.mulf").replace("ARG", ", %i ")
    expensive = BROADCAST.replace("BODY", "math.exp").replace("ARG", "")
    check(cheap, "fuse-elementwise", "// CHECK-COUNT-1: linalg.generic\n// CHECK-NOT: linalg.generic")
    check(expensive, "fuse-elementwise", "// CHECK-COUNT-2: linalg.generic")
    for text in (cheap, expensive):
        assert_same_results(text, "fuse-elementwise", [random_array(4, 8), random_array(8, seed=1)])


TRANSPOSE = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<4x8xf32>, %y: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %e = tensor.empty() : tensor<8x4xf32>
  %t = linalg.transpose ins(%x : tensor<4x8xf32>) outs(%e : tensor<8x4xf32>) permutation = [1, 0]
  %1 = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%t, %y : tensor<8x4xf32>, tensor<8x4xf32>) outs(%e : tensor<8x4xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %k = linalg.index 0 : index
    %l = arith.index_cast %k : index to i32
    %m = arith.sitofp %l : i32 to f32
    %s = arith.addf %i, %j : f32
    %u = arith.addf %s, %m : f32
    linalg.yield %u : f32
  } -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
"""


def test_a_transpose_becomes_an_index_map(check: Check) -> None:
    check(TRANSPOSE, "fuse-elementwise", "// CHECK: affine_map<(d0, d1) -> (d1, d0)>\n// CHECK-NOT: linalg.transpose")
    assert_same_results(TRANSPOSE, "fuse-elementwise", [random_array(4, 8), random_array(8, 4, seed=1)])


REDUCTION = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#col = affine_map<(d0, d1) -> (d0)>
func.func @main(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %v = tensor.empty() : tensor<4xf32>
  %z = linalg.fill ins(%c : f32) outs(%v : tensor<4xf32>) -> tensor<4xf32>
  %0 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = arith.mulf %i, %i : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  %1 = linalg.generic {indexing_maps = [#id, #col], iterator_types = ["parallel", "reduction"]}
      ins(%0 : tensor<4x8xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = arith.addf %i, %o : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""


def test_reductions_are_no_elementwise_ops(check: Check) -> None:
    check(REDUCTION, "fuse-elementwise", "// CHECK: linalg.fill\n// CHECK-COUNT-2: linalg.generic")
    assert_same_results(REDUCTION, "fuse-elementwise", [random_array(4, 8)])


def test_the_number_of_inputs_is_bounded(check: Check) -> None:
    check(CHAIN, "fuse-elementwise{max-inputs=1}", "// CHECK-COUNT-2: linalg.generic")


def test_dynamic_shapes(check: Check) -> None:
    text = CHAIN.replace("tensor<4x8xf32>", "tensor<?x8xf32>").replace(
        "%e = tensor.empty()", "%z = arith.constant 0 : index\n  %d = tensor.dim %x, %z : tensor<?x8xf32>\n"
        "  %e = tensor.empty(%d)"
    )  # fmt: skip
    check(text, "fuse-elementwise", "// CHECK-COUNT-1: linalg.generic\n// CHECK-NOT: linalg.generic")
    assert_same_results(text, "fuse-elementwise", [random_array(5, 8), random_array(8, seed=1)])


def test_the_sums_of_two_products_are_narrowed_apart(check: Check) -> None:
    maps = "affine_map<(m) -> (m)>"
    narrow = """
      %NAME = linalg.generic {indexing_maps = [MAP, MAP], iterator_types = ["parallel"]}
              ins(SOURCE : tensor<8xi32>) outs(%i : tensor<8xi8>) {
      ^bb0(%a: i32, %o: i8):
        %t = arith.trunci %a : i32 to i8
        linalg.yield %t : i8
      } -> tensor<8xi8>
    """
    text = """
    func.func @main(%x: tensor<8xi32>, %y: tensor<8xi32>) -> tensor<8xi8> {
      %i = tensor.empty() : tensor<8xi8>
    """
    text += narrow.replace("NAME", "p").replace("SOURCE", "%x") + narrow.replace("NAME", "q").replace("SOURCE", "%y")
    text += """
      %r = linalg.generic {indexing_maps = [MAP, MAP, MAP], iterator_types = ["parallel"]}
           ins(%p, %q : tensor<8xi8>, tensor<8xi8>) outs(%i : tensor<8xi8>) {
      ^bb0(%a: i8, %b: i8, %o: i8):
        %t = arith.addi %a, %b : i8
        linalg.yield %t : i8
      } -> tensor<8xi8>
      return %r : tensor<8xi8>
    }
    """
    check(
        text.replace("MAP", maps),
        "fuse-elementwise",
        """
        // CHECK: linalg.generic {{.*}} ins(%{{.*}} : tensor<8xi32>)
        // CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<8xi32>, tensor<8xi8>)
        // CHECK-NOT: linalg.generic
    """,
    )


def test_sums_are_not_narrowed_in_loops_of_another_shape(check: Check) -> None:
    check(
        """
        func.func @main(%x: tensor<8xi32>) -> tensor<1x8xi8> {
          %i = tensor.empty() : tensor<8xi8>
          %j = tensor.empty() : tensor<1x8xi8>
          %p = linalg.generic {indexing_maps = [affine_map<(m) -> (m)>, affine_map<(m) -> (m)>],
                               iterator_types = ["parallel"]} ins(%x : tensor<8xi32>) outs(%i : tensor<8xi8>) {
          ^bb0(%a: i32, %o: i8):
            %t = arith.trunci %a : i32 to i8
            linalg.yield %t : i8
          } -> tensor<8xi8>
          %r = linalg.generic {indexing_maps = [affine_map<(l, m) -> (m)>, affine_map<(l, m) -> (l, m)>],
                               iterator_types = ["parallel", "parallel"]}
               ins(%p : tensor<8xi8>) outs(%j : tensor<1x8xi8>) {
          ^bb0(%a: i8, %o: i8):
            %t = arith.addi %a, %a : i8
            linalg.yield %t : i8
          } -> tensor<1x8xi8>
          return %r : tensor<1x8xi8>
        }
        """,
        "fuse-elementwise",
        "// CHECK-COUNT-2: linalg.generic",
    )
