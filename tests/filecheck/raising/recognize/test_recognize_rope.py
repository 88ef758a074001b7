"""recognize-rope: rotated halves; halves that are swapped, unequal or unsigned stay."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, assert_same_meaning, function, normal, with_values

ROPE = function(
    "%x: @[2,4,5,8], %cos: @[1,1,5,8], %sin: @[1,1,5,8]",
    "@[2,4,5,8]",
    """
  %i4 = torch.constant.int 4
  %end = torch.constant.int 9223372036854775807
  %straight = torch.aten.mul.Tensor %x, %cos : @[2,4,5,8], @[1,1,5,8] -> @[2,4,5,8]
  %low = torch.aten.slice.Tensor %x, %i3, %i0, %i4, %i1
      : @[2,4,5,8], !torch.int, !torch.int, !torch.int, !torch.int -> @[2,4,5,4]
  %high = torch.aten.slice.Tensor %x, %i3, %i4, %end, %i1
      : @[2,4,5,8], !torch.int, !torch.int, !torch.int, !torch.int -> @[2,4,5,4]
  %minus = torch.aten.neg NEGATED : @[2,4,5,4] -> @[2,4,5,4]
  %halves = torch.prim.ListConstruct FIRST, SECOND : (@[2,4,5,4], @[2,4,5,4]) -> !torch.list<vtensor>
  %rotated = torch.aten.cat %halves, %m1 : !torch.list<vtensor>, !torch.int -> @[2,4,5,8]
  %turned = torch.aten.mul.Tensor %rotated, %sin : @[2,4,5,8], @[1,1,5,8] -> @[2,4,5,8]
  %r = torch.aten.add.Tensor %straight, %turned, %i1 : @[2,4,5,8], @[2,4,5,8], !torch.int -> @[2,4,5,8]
  return %r : @[2,4,5,8]""",
)
RIGHT = {"NEGATED": "%high", "FIRST": "%minus", "SECOND": "%low"}


def test_rotated_halves_become_rope(check: Check) -> None:
    text = with_values(ROPE, RIGHT)
    check(
        text,
        "recognize-rope",
        """
        // CHECK: func.func @main(%[[X:.*]]: !torch{{.*}}, %[[C:.*]]: !torch{{.*}}, %[[S:.*]]: !torch{{.*}}) ->
        // CHECK-DAG: %[[X1:.*]] = torch_c.to_builtin_tensor %[[X]]
        // CHECK-DAG: %[[C1:.*]] = torch_c.to_builtin_tensor %[[C]]
        // CHECK-DAG: %[[S1:.*]] = torch_c.to_builtin_tensor %[[S]]
        // CHECK-NOT: torch.aten
        // CHECK: "lk.rope"(%[[X1]], %[[C1]], %[[S1]]) {interleaved = false}
        // CHECK: return
        """,
    )
    assert_same_meaning(
        text, "recognize-rope", [normal(2, 4, 5, 8), normal(1, 1, 5, 8, seed=1), normal(1, 1, 5, 8, seed=2)]
    )


@pytest.mark.parametrize(
    "values",
    [
        {"NEGATED": "%low", "FIRST": "%minus", "SECOND": "%high"},
        {"NEGATED": "%high", "FIRST": "%low", "SECOND": "%minus"},
        {"NEGATED": "%high", "FIRST": "%high", "SECOND": "%low"},
    ],
    ids=["halves-in-place", "sign-on-the-other", "no-sign"],
)
def test_near_miss_stays(check: Check, values: dict[str, str]) -> None:
    check(with_values(ROPE, values), "recognize-rope", '// CHECK-NOT: "lk.rope"')


def test_one_angle_for_all_stays(check: Check) -> None:
    text = with_values(ROPE, RIGHT).replace("[1,1,5,8]", "[]")
    check(text, "recognize-rope", '// CHECK-NOT: "lk.rope"')
