"""resolve-shapes: extents are read where they come from, reshapes of unknown extents become views."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

DIM = """
func.func @main(%x: tensor<?x4xf32>) -> (tensor<?x8xf32>, tensor<?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %one = arith.constant 1.0 : f32
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<4x8xf32>
  %m = "lk.matmul"(%x, %w) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}
      : (tensor<?x4xf32>, tensor<4x8xf32>) -> tensor<?x8xf32>
  %s = "lk.softmax"(%m) {axis = 1 : i64, log = false} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %r = "lk.reduce"(%s) {kind = "max", axes = array<i64: 1>, keep_dims = false} : (tensor<?x8xf32>) -> tensor<?xf32>
  %d = tensor.dim %r, %c0 : tensor<?xf32>
  %e = tensor.empty(%d) : tensor<?xf32>
  %f = linalg.fill ins(%one : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]} ins(%r, %f : tensor<?xf32>, tensor<?xf32>) outs(%e : tensor<?xf32>) {
  ^bb0(%i: f32, %j: f32, %o: f32):
    %t = arith.addf %i, %j : f32
    linalg.yield %t : f32
  } -> tensor<?xf32>
  return %s, %g : tensor<?x8xf32>, tensor<?xf32>
}
"""


def test_an_extent_is_read_at_the_argument(check: Check) -> None:
    weights = {"w": random_array(4, 8, seed=5)}
    check(
        DIM,
        "resolve-shapes",
        "// CHECK: tensor.dim %arg0, %{{.*}} : tensor<?x4xf32>\n// CHECK-NOT: tensor.dim",
        weights,
    )
    assert_same_results(DIM, "resolve-shapes", [random_array(3, 4)], weights)


def test_the_extent_of_a_window_op_is_not_guessed(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<1x2x?xf32>) -> index {
      %c2 = arith.constant 2 : index
      %p = "lk.max_pool"(%x) {channels_last = false, kernel = array<i64: 2>, strides = array<i64: 2>,
        padding = array<i64: 0, 0>, dilation = array<i64: 1>} : (tensor<1x2x?xf32>) -> tensor<1x2x?xf32>
      %d = tensor.dim %p, %c2 : tensor<1x2x?xf32>
      return %d : index
    }
    """
    check(text, "resolve-shapes", '// CHECK: %[[P:.*]] = "lk.max_pool"\n// CHECK: tensor.dim %[[P]]')


RESHAPE = """
func.func @main(%x: tensor<FROMxf32>) -> tensor<TOxf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %d0 = tensor.dim %x, %c0 : tensor<FROMxf32>
  %d1 = tensor.dim %x, %c1 : tensor<FROMxf32>
  %b = arith.index_cast %d0 : index to i64
  %s = arith.index_cast %d1 : index to i64
  %f = arith.muli %b, %s : i64
  %c3 = arith.constant 3 : i64
  %c4 = arith.constant 4 : i64
  %c12 = arith.constant 12 : i64
  %n = tensor.from_elements SIZES : tensor<RANKxi64>
  %r = tensor.reshape %x(%n) : (tensor<FROMxf32>, tensor<RANKxi64>) -> tensor<TOxf32>
  return %r : tensor<TOxf32>
}
"""


def reshape(source: str, target: str, sizes: str) -> str:
    text = RESHAPE.replace("FROM", source).replace("TO", target).replace("SIZES", sizes)
    return text.replace("RANK", str(sizes.count("%")))


@pytest.mark.parametrize(
    ("source", "target", "sizes", "views", "shape"),
    [
        ("?x?x12", "?x?x3x4", "%b, %s, %c3, %c4", ["tensor.expand_shape"], (2, 5, 12)),
        ("?x?x12", "?x12", "%f, %c12", ["tensor.collapse_shape"], (2, 5, 12)),
        ("?x3x4", "?x12", "%b, %c12", ["tensor.collapse_shape"], (2, 3, 4)),
        ("?x12x4", "?x3x4x4", "%b, %c3, %c4, %c4", ["tensor.expand_shape"], (2, 12, 4)),
        ("?x12x4", "?x4x12", "%b, %c4, %c12", ["tensor.collapse_shape", "tensor.expand_shape"], (2, 12, 4)),
    ],
)
def test_reshapes_become_views(
    check: Check, source: str, target: str, sizes: str, views: list[str], shape: tuple[int, ...]
) -> None:
    text = reshape(source, target, sizes)
    checks = "// CHECK-NOT: tensor.reshape\n" + "\n".join(f"// CHECK: {view}" for view in views) + "\n// CHECK: return"
    check(text, "resolve-shapes", checks)
    assert_same_results(text, "resolve-shapes", [np.arange(np.prod(shape), dtype=np.float32).reshape(shape)])


def test_an_extent_that_a_view_would_have_to_learn_stays(check: Check) -> None:
    """[?, 12] -> [3, 4]: only the caller knows that the first extent is one."""
    check(reshape("?x12", "3x4", "%c3, %c4"), "resolve-shapes", "// CHECK: tensor.reshape")


def test_extents_are_not_negative(check: Check) -> None:
    text = """
    func.func @main(%x: tensor<?xf32>) -> i64 {
      %c0 = arith.constant 0 : index
      %zero = arith.constant 0 : i64
      %one = arith.constant 1 : i64
      %d = tensor.dim %x, %c0 : tensor<?xf32>
      %i = arith.index_cast %d : index to i64
      %n = arith.cmpi PREDICATE, %i, %zero : i64
      %r = arith.select %n, %one, %i : i64
      return %r : i64
    }
    """
    check(
        text.replace("PREDICATE", "slt"), "resolve-shapes", "// CHECK-NOT: arith.cmpi\n// CHECK: arith.constant false"
    )
    check(text.replace("PREDICATE", "sle"), "resolve-shapes", "// CHECK: arith.cmpi sle")
