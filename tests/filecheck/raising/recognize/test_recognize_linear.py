"""recognize-linear: reshapes around addmm and look-ups go; a reshape that moves rows stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.torch_text import Check, assert_same_meaning, function, normal, with_values

LINEAR = function(
    "%x: @[2,3,4], %w: @[4,5], %b: @[5]",
    "RESULT",
    """
  %i4 = torch.constant.int 4
  %i5 = torch.constant.int 5
  %i6 = torch.constant.int 6
  %flat = torch.prim.ListConstruct %m1, %i4 : (!torch.int, !torch.int) -> !torch.list<int>
  %full = torch.prim.ListConstruct ROWS, %m1, %i5 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %f = torch.aten.view %x, %flat : @[2,3,4], !torch.list<int> -> @[6,4]
  %m = torch.aten.addmm %b, %f, %w, %i1, ALPHA : @[5], @[6,4], @[4,5], !torch.int, !torch.int -> @[6,5]
  %r = torch.aten.view %m, %full : @[6,5], !torch.list<int> -> RESULT
  return %r : RESULT""",
)
RIGHT = {"ROWS": "%i2", "RESULT": "!torch.vtensor<[2,3,5],f32>", "ALPHA": "%i1"}


def test_reshapes_around_a_linear_layer_go(check: Check) -> None:
    text = with_values(LINEAR, RIGHT)
    check(
        text,
        "recognize-linear",
        """
        // CHECK-NOT: torch.aten.view
        // CHECK: %[[M:.*]] = torch.aten.matmul {{.*}} : !torch.vtensor<[2,3,4],f32>, !torch.vtensor<[4,5],f32>
        // CHECK: torch.aten.add.Tensor %[[M]]
        """,
    )
    assert_same_meaning(text, "recognize-linear", [normal(2, 3, 4), normal(4, 5, seed=1), normal(5, seed=2)])


@pytest.mark.parametrize(
    "values",
    [{**RIGHT, "ROWS": "%i3", "RESULT": "!torch.vtensor<[3,2,5],f32>"}, {**RIGHT, "ALPHA": "%i2"}],
    ids=["other-rows", "alpha"],
)
def test_near_miss_stays(check: Check, values: dict[str, str]) -> None:
    check(with_values(LINEAR, values), "recognize-linear", "// CHECK: torch.aten.addmm")


LOOK_UP = function(
    "%t: @[7,4], %i: @[2,3:si64]",
    "@[2,3,4]",
    """
  %sizes = torch.prim.ListConstruct %i2, %i3 : (!torch.int, !torch.int) -> !torch.list<int>
  %f = torch.aten.flatten.using_ints %i, %i0, %i1 : @[2,3:si64], !torch.int, !torch.int -> @[6:si64]
  %g = torch.aten.index_select %t, %i0, %f : @[7,4], !torch.int, @[6:si64] -> @[6,4]
  %r = torch.aten.unflatten.int %g, %i0, %sizes : @[6,4], !torch.int, !torch.list<int> -> @[2,3,4]
  return %r : @[2,3,4]""",
)


def test_reshapes_around_a_look_up_go(check: Check) -> None:
    check(LOOK_UP, "recognize-linear", "// CHECK-NOT: index_select\n// CHECK: torch.aten.embedding")
    assert_same_meaning(LOOK_UP, "recognize-linear", [normal(7, 4), np.array([[0, 3, 6], [5, 5, 1]])])


BATCHED = function(
    "%x: @[2,3,5,4], %y: @[2,3,4,6]",
    "RESULT",
    """
  %i4 = torch.constant.int 4
  %i5 = torch.constant.int 5
  %i6 = torch.constant.int 6
  %xs = torch.prim.ListConstruct %i6, %i5, %i4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %ys = torch.prim.ListConstruct %i6, %i4, %i6 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %rs = torch.prim.ListConstruct FIRST, SECOND, %i5, %i6
      : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %xf = torch.aten.view %x, %xs : @[2,3,5,4], !torch.list<int> -> @[6,5,4]
  %yf = torch.aten.view %y, %ys : @[2,3,4,6], !torch.list<int> -> @[6,4,6]
  %m = torch.aten.bmm %xf, %yf : @[6,5,4], @[6,4,6] -> @[6,5,6]
  %r = torch.aten.view %m, %rs : @[6,5,6], !torch.list<int> -> RESULT
  return %r : RESULT""",
)


def test_merged_batch_dims_are_split_again(check: Check) -> None:
    text = with_values(BATCHED, {"FIRST": "%i2", "SECOND": "%i3", "RESULT": "!torch.vtensor<[2,3,5,6],f32>"})
    check(text, "recognize-linear", "// CHECK-NOT: torch.aten.view\n// CHECK: torch.aten.matmul")
    assert_same_meaning(text, "recognize-linear", [normal(2, 3, 5, 4), normal(2, 3, 4, 6)])


def test_batch_dims_that_are_split_otherwise_stay(check: Check) -> None:
    text = with_values(BATCHED, {"FIRST": "%i3", "SECOND": "%i2", "RESULT": "!torch.vtensor<[3,2,5,6],f32>"})
    check(text, "recognize-linear", "// CHECK: torch.aten.bmm")


SHARED = function(
    "%x: @[2,3,4], %w: SOURCE",
    "@[2,3,5]",
    """
  %i4 = torch.constant.int 4
  %i5 = torch.constant.int 5
  %sizes = torch.prim.ListConstruct %i2, %i4, %i5 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %e = torch.aten.expand %w, %sizes, %false : SOURCE, !torch.list<int>, !torch.bool -> @[2,4,5]
  %r = torch.aten.bmm %x, %e : @[2,3,4], @[2,4,5] -> @[2,3,5]
  return %r : @[2,3,5]""",
)


def test_weight_is_not_copied_for_each_batch(check: Check) -> None:
    text = with_values(SHARED, {"SOURCE": "!torch.vtensor<[4,5],f32>"})
    check(text, "recognize-linear", "// CHECK-NOT: torch.aten.expand\n// CHECK: torch.aten.matmul")
    assert_same_meaning(text, "recognize-linear", [normal(2, 3, 4), normal(4, 5)])


def test_vector_that_is_spread_over_a_matrix_stays(check: Check) -> None:
    text = with_values(SHARED, {"SOURCE": "!torch.vtensor<[4,1],f32>"})
    check(text, "recognize-linear", "// CHECK: torch.aten.expand\n// CHECK: torch.aten.bmm")
