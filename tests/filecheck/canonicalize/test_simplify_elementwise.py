"""simplify-elementwise: what an elementwise op reads is followed to what is stored."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

HEAD = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
#unit = affine_map<(d0, d1) -> (0, d1)>
"""
ADD = """
  %r = linalg.generic {indexing_maps = [#id, MAP, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %v : tensor<4x8xf32>, TYPE) outs(%e : tensor<4x8xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %s = arith.addf %i, %j : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
"""


def module(argument: str, body: str, index_map: str, kind: str) -> str:
    return (
        f"{HEAD}func.func @main(%x: tensor<4x8xf32>{argument}) -> tensor<4x8xf32> {{\n"
        f"  %c = arith.constant 2.0 : f32\n  %e = tensor.empty() : tensor<4x8xf32>\n  {body}"
        + ADD.replace("MAP", index_map).replace("TYPE", kind)
    )


def test_a_fill_becomes_a_scalar(check: Check) -> None:
    text = module(
        "", "%v = linalg.fill ins(%c : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>", "#id", "tensor<4x8xf32>"
    )
    check(
        text,
        "simplify-elementwise",
        "// CHECK-NOT: linalg.fill\n// CHECK: ins(%arg0 :\n// CHECK: arith.addf %{{.*}}, %{{.*cst.*}}",
    )
    assert_same_results(text, "simplify-elementwise", [random_array(4, 8)])


def test_a_splat_constant_becomes_a_scalar(check: Check) -> None:
    text = module("", "%v = arith.constant dense<3.0> : tensor<8xf32>", "#row", "tensor<8xf32>")
    check(text, "simplify-elementwise", "// CHECK-NOT: dense\n// CHECK: ins(%arg0 :")
    assert_same_results(text, "simplify-elementwise", [random_array(4, 8)])


def test_other_constants_stay_tensors(check: Check) -> None:
    text = module(
        "", "%v = arith.constant dense<[1., 2., 3., 4., 5., 6., 7., 8.]> : tensor<8xf32>", "#row", "tensor<8xf32>"
    )
    check(text, "simplify-elementwise", "// CHECK: dense\n// CHECK: ins(%arg0, %{{.*}} :")


def test_a_broadcast_is_read_at_its_source(check: Check) -> None:
    body = "%v = linalg.broadcast ins(%b : tensor<8xf32>) outs(%e : tensor<4x8xf32>) dimensions = [0]"
    text = module(", %b: tensor<8xf32>", body, "#id", "tensor<4x8xf32>")
    check(
        text,
        "simplify-elementwise",
        "// CHECK-NOT: linalg.broadcast\n// CHECK: ins(%arg0, %arg1 : tensor<4x8xf32>, tensor<8xf32>)",
    )
    assert_same_results(text, "simplify-elementwise", [random_array(4, 8), random_array(8, seed=1)])


def test_a_broadcast_that_is_needed_whole_stays(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<4x8xf32>, %b: tensor<8xf32>) -> tensor<8x8xf32> {
      %e = tensor.empty() : tensor<4x8xf32>
      %v = linalg.broadcast ins(%b : tensor<8xf32>) outs(%e : tensor<4x8xf32>) dimensions = [0]
      %r = tensor.concat dim(0) %x, %v : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
      return %r : tensor<8x8xf32>
    }
    """
    check(text, "simplify-elementwise", "// CHECK: linalg.broadcast")


def test_views_of_unit_extents_are_read_through(check: Check) -> None:
    body = "%v = tensor.expand_shape %b [[0, 1]] output_shape [1, 8] : tensor<8xf32> into tensor<1x8xf32>"
    text = module(", %b: tensor<8xf32>", body, "#unit", "tensor<1x8xf32>")
    check(
        text,
        "simplify-elementwise",
        "// CHECK: affine_map<(d0, d1) -> (d1)>\n// CHECK-NOT: tensor.expand_shape\n// CHECK: ins(%arg0, %arg1",
    )
    assert_same_results(text, "simplify-elementwise", [random_array(4, 8), random_array(8, seed=1)])


def test_a_real_reshape_is_not_read_through(check: Check) -> None:
    body = "%v = tensor.expand_shape %b [[0, 1]] output_shape [4, 8] : tensor<32xf32> into tensor<4x8xf32>"
    text = module(", %b: tensor<32xf32>", body, "#id", "tensor<4x8xf32>")
    check(text, "simplify-elementwise", "// CHECK: %[[V:.*]] = tensor.expand_shape\n// CHECK: ins(%arg0, %[[V]]")


def test_unused_and_repeated_inputs_and_borrowed_destinations(check: Check) -> None:
    text = (
        HEAD
        + """
    func.func @main(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %r = linalg.generic {indexing_maps = [#id, #id, #id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x, %y, %x : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) outs(%y : tensor<4x8xf32>) {
      ^bb0(%i: f32, %j: f32, %k: f32, %o: f32):
        %s = arith.mulf %i, %k : f32
        linalg.yield %s : f32
      } -> tensor<4x8xf32>
      return %r : tensor<4x8xf32>
    }
    """
    )
    check(text, "simplify-elementwise", "// CHECK: tensor.empty\n// CHECK: ins(%arg0 : tensor<4x8xf32>)")
    assert_same_results(text, "simplify-elementwise", [random_array(4, 8), random_array(4, 8, seed=1)])


def test_a_destination_that_is_read_stays(check: Check) -> None:
    text = (
        HEAD
        + """
    func.func @main(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<4x8xf32>) outs(%y : tensor<4x8xf32>) {
      ^bb0(%i: f32, %o: f32):
        %s = arith.mulf %i, %o : f32
        linalg.yield %s : f32
      } -> tensor<4x8xf32>
      return %r : tensor<4x8xf32>
    }
    """
    )
    check(text, "simplify-elementwise", "// CHECK: outs(%arg1")


def test_copies_vanish_and_captured_elements_become_inputs(check: Check) -> None:
    text = (
        HEAD
        + """
    func.func @main(%x: tensor<4x8xf32>, %n: tensor<f32>) -> tensor<4x8xf32> {
      %e = tensor.empty() : tensor<4x8xf32>
      %k = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
      ^bb0(%i: f32, %o: f32):
        linalg.yield %i : f32
      } -> tensor<4x8xf32>
      %f = tensor.extract %n[] : tensor<f32>
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%k : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
      ^bb0(%i: f32, %o: f32):
        %s = arith.mulf %i, %f : f32
        linalg.yield %s : f32
      } -> tensor<4x8xf32>
      return %r : tensor<4x8xf32>
    }
    """
    )
    check(
        text,
        "simplify-elementwise",
        "// CHECK: affine_map<(d0, d1) -> ()>\n// CHECK-NOT: tensor.extract\n"
        "// CHECK: ins(%arg0, %arg1 :\n// CHECK-NOT: linalg.generic",
    )
    assert_same_results(text, "simplify-elementwise", [random_array(4, 8), random_array(1, seed=2).reshape(())])


def test_a_tensor_of_one_element_collapsed_to_a_scalar_is_read_by_its_own_rank(check: Check) -> None:
    text = module(
        ", %u: tensor<1x1xf32>",
        "%v = tensor.collapse_shape %u [] : tensor<1x1xf32> into tensor<f32>",
        "affine_map<(d0, d1) -> ()>",
        "tensor<f32>",
    )
    check(
        text,
        "simplify-elementwise",
        """
        // CHECK-NOT: tensor.collapse_shape
        // CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<4x8xf32>, tensor<1x1xf32>)
        """,
    )
