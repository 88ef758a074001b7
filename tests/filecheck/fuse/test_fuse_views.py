"""fuse-views: transposes and reshapes around attention go into its region; what others read too stays."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

ATTENTION = """
func.func @main(%q: tensor<2x5x12xf32>, %k: tensor<2x6x12xf32>, %v: tensor<2x3x6x4xf32>) -> ({types}) {{
  %eq = tensor.empty() : tensor<2x3x5x4xf32>
  %ek = tensor.empty() : tensor<2x3x6x4xf32>
  %eo = tensor.empty() : tensor<2x5x3x4xf32>
  %q1 = tensor.expand_shape %q [[0], [1], [2, 3]] output_shape [2, 5, 3, 4]
    : tensor<2x5x12xf32> into tensor<2x5x3x4xf32>
  %k1 = tensor.expand_shape %k [[0], [1], [2, 3]] output_shape [2, 6, 3, 4]
    : tensor<2x6x12xf32> into tensor<2x6x3x4xf32>
  %q2 = linalg.transpose ins(%q1 : tensor<2x5x3x4xf32>) outs(%eq : tensor<2x3x5x4xf32>) permutation = [0, 2, 1, 3]
  %k2 = linalg.transpose ins(%k1 : tensor<2x6x3x4xf32>) outs(%ek : tensor<2x3x6x4xf32>) permutation = [0, 2, 1, 3]
  %a = "lk.attention"(%q2, %k2, %v) {{causal = false, empty_rows = "zero", fill = 0xFFF0000000000000 : f64,
    masking = "add", scale = 0.5 : f64}}
    : (tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x4xf32>
  %t = linalg.transpose ins(%a : tensor<2x3x5x4xf32>) outs(%eo : tensor<2x5x3x4xf32>) permutation = [0, 2, 1, 3]
  %r = tensor.collapse_shape %t [[0], [1], [2, 3]] : tensor<2x5x3x4xf32> into tensor<2x5x12xf32>
  return {results} : {types}
}}
"""


def test_views_on_both_sides(check: Check) -> None:
    check(
        ATTENTION.format(results="%r", types="tensor<2x5x12xf32>"),
        "fuse-views",
        """
        // CHECK: func.func @main(%[[Q:.*]]: tensor<2x5x12xf32>, %[[K:.*]]: tensor<2x6x12xf32>, %[[V:.*]]: tensor
        // CHECK-NOT: linalg.transpose
        // CHECK: %[[R:.*]] = "lk.region"(%[[Q]], %[[K]], %[[V]])
        // CHECK: tensor.expand_shape
        // CHECK: linalg.transpose
        // CHECK: lk.attention
        // CHECK: linalg.transpose
        // CHECK: tensor.collapse_shape
        // CHECK: lk.yield
        // CHECK: kind = "attention"
        // CHECK: return %[[R]]
        """,
    )


def test_what_others_read_too_stays(check: Check) -> None:
    """The queries, turned, are a result of their own; what attention gives is read before and behind the transpose."""
    check(
        ATTENTION.format(results="%a, %r, %q2", types="tensor<2x3x5x4xf32>, tensor<2x5x12xf32>, tensor<2x3x5x4xf32>"),
        "fuse-views",
        """
        // CHECK: %[[T:.*]] = linalg.transpose
        // CHECK: "lk.region"
        // CHECK: lk.attention
        // CHECK-NEXT: lk.yield
        // CHECK: %[[O:.*]] = linalg.transpose
        // CHECK: tensor.collapse_shape %[[O]]
        // CHECK: return {{.*}}%[[T]]
        """,
    )


def test_results_are_the_same() -> None:
    text = ATTENTION.format(results="%r", types="tensor<2x5x12xf32>")
    inputs = [random_array(*shape) for shape in ((2, 5, 12), (2, 6, 12), (2, 3, 6, 4))]
    assert_same_results(text, "fuse-views,form-regions", inputs)


def test_nothing_to_do_without_views(check: Check) -> None:
    check(
        """
func.func @main(%q: tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32> {
  %a = "lk.attention"(%q, %q, %q) {causal = false, empty_rows = "zero", fill = 0xFFF0000000000000 : f64,
    masking = "add", scale = 0.5 : f64}
    : (tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>) -> tensor<1x1x2x4xf32>
  return %a : tensor<1x1x2x4xf32>
}
""",
        "fuse-views",
        """
        // CHECK-NOT: lk.region
        // CHECK: lk.attention
        """,
    )
