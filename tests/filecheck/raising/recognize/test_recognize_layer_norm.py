"""recognize-layer-norm: the formula of old exports, with scale and bias; axes and operands that do not fit stay."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, assert_same_meaning, function, normal, with_values

NORM = function(
    "%x: @[2,3,8], %w: @[8], %b: @[8], %v: @[2,3,8]",
    "@[2,3,8]",
    """
  %eps = torch.constant.float 1.0e-05
  %axes = torch.prim.ListConstruct AXIS : (!torch.int) -> !torch.list<int>
  %m = torch.aten.mean.dim %x, %axes, %true, %none
      : @[2,3,8], !torch.list<int>, !torch.bool, !torch.none -> @[MEAN]
  %d = torch.aten.sub.Tensor %x, %m, %i1 : @[2,3,8], @[MEAN], !torch.int -> @[2,3,8]
  %sq = torch.aten.pow.Tensor_Scalar SQUARED, EXPONENT : @[2,3,8], !torch.int -> @[2,3,8]
  %var = torch.aten.mean.dim %sq, %axes, %true, %none
      : @[2,3,8], !torch.list<int>, !torch.bool, !torch.none -> @[MEAN]
  %e = torch.aten.add.Scalar %var, %eps, %i1 : @[MEAN], !torch.float, !torch.int -> @[MEAN]
  %s = torch.aten.sqrt %e : @[MEAN] -> @[MEAN]
  %n = torch.aten.div.Tensor %d, %s : @[2,3,8], @[MEAN] -> @[2,3,8]
  %y = torch.aten.mul.Tensor %n, %w : @[2,3,8], @[8] -> @[2,3,8]
  %r = torch.aten.add.Tensor %y, %b, %i1 : @[2,3,8], @[8], !torch.int -> @[2,3,8]
  return %r : @[2,3,8]""".replace("@[MEAN]", "!torch.vtensor<[MEAN],f32>"),
)
RIGHT = {"AXIS": "%m1", "MEAN": "2,3,1", "SQUARED": "%d", "EXPONENT": "%i2"}
INPUTS = [normal(2, 3, 8), normal(8, seed=1), normal(8, seed=2), normal(2, 3, 8, seed=3)]


def test_formula_becomes_layer_norm_with_scale_and_bias(check: Check) -> None:
    text = with_values(NORM, RIGHT)
    check(
        text,
        "recognize-layer-norm",
        """
        // CHECK: @main(%[[X:.*]]: !{{.*}}, %[[W:.*]]: !{{.*}}, %[[B:.*]]: !{{.*}}, %{{.*}}: !torch
        // CHECK-NOT: torch.aten.{{sqrt|div}}
        // CHECK: %[[EPS:.*]] = torch.constant.float 1.000000e-05
        // CHECK: %[[R:.*]] = torch.aten.layer_norm %[[X]], %{{.*}}, %[[W]], %[[B]], %[[EPS]]
        // CHECK: return %[[R]]
        """,
    )
    assert_same_meaning(text, "recognize-layer-norm", INPUTS)


def test_reciprocal_root_and_a_second_subtraction(check: Check) -> None:
    text = with_values(NORM, {**RIGHT, "SQUARED": "%d2"})
    text = text.replace(
        "%sq =",
        "%d2 = torch.aten.sub.Tensor %x, %m, %i1 : "
        "!torch.vtensor<[2,3,8],f32>, !torch.vtensor<[2,3,1],f32>, !torch.int -> "
        "!torch.vtensor<[2,3,8],f32>\n  %sq =",
    )
    text = text.replace("torch.aten.sqrt", "torch.aten.rsqrt").replace("torch.aten.div.Tensor", "torch.aten.mul.Tensor")
    check(text, "recognize-layer-norm", "// CHECK: torch.aten.layer_norm")
    assert_same_meaning(text, "recognize-layer-norm", INPUTS)


def test_affine_of_another_shape_stays_outside(check: Check) -> None:
    text = with_values(NORM, RIGHT).replace(
        "torch.aten.mul.Tensor %n, %w : !torch.vtensor<[2,3,8],f32>, !torch.vtensor<[8],f32>",
        "torch.aten.mul.Tensor %n, %v : !torch.vtensor<[2,3,8],f32>, !torch.vtensor<[2,3,8],f32>",
    )
    check(
        text,
        "recognize-layer-norm",
        """
        // CHECK: %[[N:.*]] = torch.aten.layer_norm %{{.*}}, %{{.*}}, %none{{.*}}, %none
        // CHECK: torch.aten.mul.Tensor %[[N]]
        // CHECK: torch.aten.add.Tensor
        """,
    )
    assert_same_meaning(text, "recognize-layer-norm", INPUTS)


@pytest.mark.parametrize(
    "values",
    [
        {**RIGHT, "AXIS": "%i1", "MEAN": "2,1,8"},
        {**RIGHT, "SQUARED": "%x"},
        {**RIGHT, "EXPONENT": "%i3"},
    ],
    ids=["inner-axis", "square-of-x", "cube"],
)
def test_near_miss_stays(check: Check, values: dict[str, str]) -> None:
    check(with_values(NORM, values), "recognize-layer-norm", "// CHECK-NOT: torch.aten.layer_norm")
