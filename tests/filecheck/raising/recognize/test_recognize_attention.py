"""recognize-attention: scale, masks and grouped queries of spelled-out attention; what is nearly attention stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.torch_text import Check, assert_same_meaning, function, normal, raised, with_values

PLAIN = function(
    "%q: @[2,4,5,8], %k: @[2,4,6,8], %v: @[2,4,6,8], %mask: @[MASK]".replace("@[MASK]", "!torch.vtensor<[MASK],f32>"),
    "@[2,4,5,8]",
    """
  %root = torch.constant.float 3.0
  %t = torch.aten.transpose.int %k, FIRST, %i3 : @[2,4,6,8], !torch.int, !torch.int -> @[2,4,8,6]
  %s = torch.aten.matmul %q, %t : @[2,4,5,8], @[2,4,8,6] -> @[2,4,5,6]
  %c = torch.aten.div.Scalar %s, %root : @[2,4,5,6], !torch.float -> @[2,4,5,6]
  %a = torch.aten.add.Tensor %c, %mask, ALPHA : @[2,4,5,6], !torch.vtensor<[MASK],f32>, !torch.int -> @[2,4,5,6]
  %p = torch.aten.softmax.int %a, AXIS, %none : @[2,4,5,6], !torch.int, !torch.none -> @[2,4,5,6]
  %r = torch.aten.matmul %p, %v : @[2,4,5,6], @[2,4,6,8] -> @[2,4,5,8]
  return %r : @[2,4,5,8]""",
)
RIGHT = {"MASK": "2,1,5,6", "ALPHA": "%i1", "AXIS": "%m1", "FIRST": "%i2"}
INPUTS = [normal(2, 4, 5, 8), normal(2, 4, 6, 8, seed=1), normal(2, 4, 6, 8, seed=2), normal(2, 1, 5, 6, seed=3)]


def test_scale_and_mask(check: Check) -> None:
    text = with_values(PLAIN, RIGHT)
    check(
        text,
        "recognize-attention",
        """
        // CHECK: @main(%[[Q:.*]]: !{{.*}}, %[[K:.*]]: !{{.*}}, %[[V:.*]]: !{{.*}}, %[[M:.*]]: !{{.*}}) ->
        // CHECK-DAG: %[[Q1:.*]] = torch_c.to_builtin_tensor %[[Q]]
        // CHECK-DAG: %[[K1:.*]] = torch_c.to_builtin_tensor %[[K]]
        // CHECK-DAG: %[[V1:.*]] = torch_c.to_builtin_tensor %[[V]]
        // CHECK-DAG: %[[M1:.*]] = torch_c.to_builtin_tensor %[[M]]
        // CHECK-NOT: torch.aten
        // CHECK: "lk.attention"(%[[Q1]], %[[K1]], %[[V1]], %[[M1]]) {causal = false,{{.*}}scale = 0.33333
        // CHECK: return
        """,
    )
    assert_same_meaning(text, "recognize-attention", INPUTS)


SHARED_SCALE = function(
    "%q: @[2,4,5,8], %k: @[2,2,6,8], %v: @[2,2,6,8]",
    "@[2,4,5,8]",
    """
  %i5 = torch.constant.int 5
  %i4 = torch.constant.int 4
  %i6 = torch.constant.int 6
  %i8 = torch.constant.int 8
  %half = torch.vtensor.literal(dense<5.0e-01> : tensor<f32>) : @[]
  %wide = torch.prim.ListConstruct %i2, %i2, %i2, %i6, %i8
      : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %merged = torch.prim.ListConstruct %i2, %i4, %i6, %i8
      : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %order = torch.prim.ListConstruct %i0, %i1, %i3, %i2
      : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %ku = torch.aten.unsqueeze %k, UNSQUEEZED : @[2,2,6,8], !torch.int -> NARROW
  %ke = torch.aten.expand %ku, %wide, %false : NARROW, !torch.list<int>, !torch.bool -> @[2,2,2,6,8]
  %kr = torch.aten.view %ke, %merged : @[2,2,2,6,8], !torch.list<int> -> @[2,4,6,8]
  %vu = torch.aten.unsqueeze %v, UNSQUEEZED : @[2,2,6,8], !torch.int -> NARROW
  %ve = torch.aten.expand %vu, %wide, %false : NARROW, !torch.list<int>, !torch.bool -> @[2,2,2,6,8]
  %vr = torch.aten.view %ve, %merged : @[2,2,2,6,8], !torch.list<int> -> @[2,4,6,8]
  %kt = torch.aten.permute %kr, %order : @[2,4,6,8], !torch.list<int> -> @[2,4,8,6]
  %ks = torch.aten.mul.Tensor %kt, %half : @[2,4,8,6], @[] -> @[2,4,8,6]
  %qs = torch.aten.mul.Tensor %q, %half : @[2,4,5,8], @[] -> @[2,4,5,8]
  %s = torch.aten.matmul %qs, %ks : @[2,4,5,8], @[2,4,8,6] -> @[2,4,5,6]
  %p = torch.aten.softmax.int %s, %m1, %none : @[2,4,5,6], !torch.int, !torch.none -> @[2,4,5,6]
  %r = torch.aten.matmul %p, %vr : @[2,4,5,6], @[2,4,6,8] -> @[2,4,5,8]
  return %r : @[2,4,5,8]""",
)
GROUPED = {"UNSQUEEZED": "%i2", "NARROW": "!torch.vtensor<[2,2,1,6,8],f32>"}
TILED = {"UNSQUEEZED": "%i1", "NARROW": "!torch.vtensor<[2,1,2,6,8],f32>"}
FEW_HEADS = [normal(2, 4, 5, 8), normal(2, 2, 6, 8, seed=1), normal(2, 2, 6, 8, seed=2)]


def test_scale_on_both_operands_and_grouped_queries(check: Check) -> None:
    text = with_values(SHARED_SCALE, GROUPED)
    check(
        text,
        "recognize-attention",
        """
        // CHECK-NOT: torch.aten.expand
        // CHECK: "lk.attention"({{.*}}scale = 2.500000e-01{{.*}}<2x4x5x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8x
        """,
    )
    assert_same_meaning(text, "recognize-attention", FEW_HEADS)


def test_heads_that_are_tiled_are_not_grouped(check: Check) -> None:
    # Tiling gives heads 0 1 0 1, grouped queries need 0 0 1 1: attention yes, with the copies.
    text = with_values(SHARED_SCALE, TILED)
    check(text, "recognize-attention", '// CHECK: "lk.attention"({{.*}}tensor<2x4x6x8xf32>, tensor<2x4x6x8xf32>)')
    assert_same_meaning(text, "recognize-attention", FEW_HEADS)


WHERE = function(
    "%q: @[2,5,8], %k: @[2,6,8], %v: @[2,6,8], %keep: @[2,5,6:i1]",
    "@[2,5,8]",
    """
  %low = torch.constant.float FILL
  %t = torch.aten.transpose.int %k, %i1, %i2 : @[2,6,8], !torch.int, !torch.int -> @[2,8,6]
  %s = torch.aten.bmm %q, %t : @[2,5,8], @[2,8,6] -> @[2,5,6]
  %w = torch.aten.where.ScalarOther %keep, %s, %low : @[2,5,6:i1], @[2,5,6], !torch.float -> @[2,5,6]
  %p = torch.aten._softmax %w, %i2, %false : @[2,5,6], !torch.int, !torch.bool -> @[2,5,6]
  %r = torch.aten.bmm %p, %v : @[2,5,6], @[2,6,8] -> @[2,5,8]
  return %r : @[2,5,8]""",
)


@pytest.mark.parametrize("fill", ["-3.40282346e+38", "-1.0e+04", "-1.0", "2.0", "0xFFF0000000000000"])
def test_selection_puts_the_fill_in_the_place_of_scores(check: Check, fill: str) -> None:
    text = with_values(WHERE, {"FILL": fill})
    check(
        text,
        "recognize-attention",
        """
        // CHECK: %[[M:.*]] = torch_c.to_builtin_tensor %arg3
        // CHECK: "lk.attention"(%{{.*}}, %{{.*}}, %{{.*}}, %[[M]]) {{.*}}masking = "select"
        """,
    )
    keep = normal(2, 5, 6, seed=4) > 0
    keep[0, 1] = False  # a row without keys: equal weights for a finite fill, NaN for an infinite one
    key = normal(2, 6, 8, seed=1)
    key[1, 3] = np.nan
    keep[1, :, 3] = False  # a score that is not a number, and is not selected
    assert_same_meaning(text, "recognize-attention", [normal(2, 5, 8), key, normal(2, 6, 8, seed=2), keep])


def test_two_selections_of_one_fill_are_one(check: Check) -> None:
    text = with_values(WHERE, {"FILL": "-1.0e+04"}).replace(
        "  %p =",
        "  %m = torch.aten.where.ScalarOther %keep, %w, SECOND : @[2,5,6:i1], @[2,5,6], !torch.float -> @[2,5,6]\n"
        "  %p =".replace("@[2,5,6:i1]", "!torch.vtensor<[2,5,6],i1>").replace(
            "@[2,5,6]", "!torch.vtensor<[2,5,6],f32>"
        ),
    )
    text = text.replace("_softmax %w", "_softmax %m")
    same, other = text.replace("SECOND", "%low"), text.replace("SECOND", "%o")
    other = other.replace("  %low", "  %o = torch.constant.float -2.0\n  %low")
    check(same, "recognize-attention", '// CHECK: torch.aten.logical_and\n// CHECK: "lk.attention"')
    check(other, "recognize-attention", '// CHECK-NOT: "lk.attention"')
    inputs = [normal(2, 5, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), normal(2, 5, 6, seed=4) > 0]
    assert_same_meaning(same, "recognize-attention", inputs)


def test_a_bool_that_is_added_counts_one(check: Check) -> None:
    text = with_values(PLAIN, RIGHT).replace("!torch.vtensor<[2,1,5,6],f32>", "!torch.vtensor<[2,1,5,6],i1>")
    check(text, "recognize-attention", '// CHECK: torch.aten.to.dtype\n// CHECK: "lk.attention"({{.*}}masking = "add"')
    assert_same_meaning(text, "recognize-attention", [*INPUTS[:3], INPUTS[3] > 0])


def test_a_row_of_infinite_masks_is_not_a_number(check: Check) -> None:
    mask = INPUTS[3].copy()
    mask[1, 0, 2] = -np.inf
    text = with_values(PLAIN, RIGHT)
    assert_same_meaning(text, "recognize-attention", [*INPUTS[:3], mask])
    assert np.isnan(raised(text, [*INPUTS[:3], mask])[0][1, :, 2]).all()


GUARDED = function(
    "%q: @[2,5,8], %k: @[2,6,8], %v: @[2,6,8], %mask: @[5,6]",
    "@[2,5,8]",
    """
  %infinity = torch.constant.float 0xFFF0000000000000
  %zero = torch.constant.float 0.0
  %t = torch.aten.transpose.int %k, %i1, %i2 : @[2,6,8], !torch.int, !torch.int -> @[2,8,6]
  %s = torch.aten.bmm %q, %t : @[2,5,8], @[2,8,6] -> @[2,5,6]
  %a = torch.aten.add.Tensor %s, %mask, %i1 : @[2,5,6], @[5,6], !torch.int -> @[2,5,6]
  %p = torch.aten._softmax %a, %i2, %false : @[2,5,6], !torch.int, !torch.bool -> @[2,5,6]
  %e = torch.aten.eq.Scalar TESTED, %infinity : @[2,5,6], !torch.float -> @[2,5,6:i1]
  %n = torch.aten.all.dim %e, AXIS, %true : @[2,5,6:i1], !torch.int, !torch.bool -> EMPTY
  %g = torch.aten.where.ScalarSelf %n, %zero, %p : EMPTY, !torch.float, @[2,5,6] -> @[2,5,6]
  %r = torch.aten.bmm %g, %v : @[2,5,6], @[2,6,8] -> @[2,5,8]
  return %r : @[2,5,8]""",
)
EMPTY_ROWS = {"TESTED": "%a", "AXIS": "%m1", "EMPTY": "!torch.vtensor<[2,5,1],i1>"}


def test_guard_for_rows_without_keys_is_part_of_attention(check: Check) -> None:
    text = with_values(GUARDED, EMPTY_ROWS)
    check(text, "recognize-attention", '// CHECK-NOT: torch.aten.where\n// CHECK: "lk.attention"')
    mask = normal(5, 6, seed=3)
    mask[2] = -np.inf
    inputs = [normal(2, 5, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), mask]
    assert_same_meaning(text, "recognize-attention", inputs)
    assert not raised(text, inputs)[0][:, 2].any()


@pytest.mark.parametrize(
    "values",
    [
        {**EMPTY_ROWS, "TESTED": "%s"},
        {**EMPTY_ROWS, "AXIS": "%i1", "EMPTY": "!torch.vtensor<[2,1,6],i1>"},
        {**EMPTY_ROWS, "EMPTY": "!torch.vtensor<[2,5],i1>"},
    ],
    ids=["other-scores", "columns", "dropped-dim"],
)
def test_another_guard_stays(check: Check, values: dict[str, str]) -> None:
    check(with_values(GUARDED, values), "recognize-attention", '// CHECK-NOT: "lk.attention"')


@pytest.mark.parametrize(
    "text",
    [
        with_values(PLAIN, {**RIGHT, "AXIS": "%i2"}),
        with_values(PLAIN, {**RIGHT, "ALPHA": "%i2"}),
        with_values(PLAIN, RIGHT)
        .replace("torch.aten.softmax.int %a", "torch.aten.softmax.int %b")
        .replace(
            "%p =", "%b = torch.aten.relu %a : !torch.vtensor<[2,4,5,6],f32> -> !torch.vtensor<[2,4,5,6],f32>\n  %p ="
        ),
    ],
    ids=["softmax-over-queries", "scaled-mask", "op-between"],
)
def test_near_miss_stays(check: Check, text: str) -> None:
    check(text, "recognize-attention", '// CHECK-NOT: "lk.attention"')
