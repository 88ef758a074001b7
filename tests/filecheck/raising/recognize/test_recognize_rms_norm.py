"""recognize-rms-norm: in f32, on the f32 copy of bf16 data, and what is nearly one."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, assert_same_meaning, function, normal, with_values

NORM = function(
    "%x: @[2,3,8], %w: @[8]",
    "@[2,3,8]",
    """
  %eps = torch.constant.float 1.0e-06
  %axes = torch.prim.ListConstruct %m1 : (!torch.int) -> !torch.list<int>
  %sq = torch.aten.pow.Tensor_Scalar %x, EXPONENT : @[2,3,8], !torch.int -> @[2,3,8]
  %mean = torch.aten.REDUCTION %sq, %axes, %true, %none
      : @[2,3,8], !torch.list<int>, !torch.bool, !torch.none -> @[2,3,1]
  %e = torch.aten.add.Scalar %mean, %eps, %i1 : @[2,3,1], !torch.float, !torch.int -> @[2,3,1]
  %s = torch.aten.rsqrt %e : @[2,3,1] -> @[2,3,1]
  %n = torch.aten.mul.Tensor SCALED, %s : @[2,3,8], @[2,3,1] -> @[2,3,8]
  %r = torch.aten.mul.Tensor %w, %n : @[8], @[2,3,8] -> @[2,3,8]
  return %r : @[2,3,8]""",
)
RIGHT = {"EXPONENT": "%i2", "REDUCTION": "mean.dim", "SCALED": "%x"}

BF16 = function(
    "%x: @[2,3,8:bf16], %w: @[8:bf16]",
    "@[2,3,8:bf16]",
    """
  %eps = torch.constant.float 1.0e-06
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %axes = torch.prim.ListConstruct %m1 : (!torch.int) -> !torch.list<int>
  %x32 = torch.aten.to.dtype %x, %f32, %false, %false, %none
      : @[2,3,8:bf16], !torch.int, !torch.bool, !torch.bool, !torch.none -> @[2,3,8]
  %sq = torch.aten.mul.Tensor %x32, %x32 : @[2,3,8], @[2,3,8] -> @[2,3,8]
  %mean = torch.aten.mean.dim %sq, %axes, %true, %none
      : @[2,3,8], !torch.list<int>, !torch.bool, !torch.none -> @[2,3,1]
  %e = torch.aten.add.Scalar %mean, %eps, %i1 : @[2,3,1], !torch.float, !torch.int -> @[2,3,1]
  %s = torch.aten.sqrt %e : @[2,3,1] -> @[2,3,1]
  %n = torch.aten.div.Tensor %x32, %s : @[2,3,8], @[2,3,1] -> @[2,3,8]
  %n16 = torch.aten.to.dtype %n, %bf16, %false, %false, %none
      : @[2,3,8], !torch.int, !torch.bool, !torch.bool, !torch.none -> @[2,3,8:bf16]
  %r = torch.aten.mul.Tensor %w, %n16 : @[8:bf16], @[2,3,8:bf16] -> @[2,3,8:bf16]
  return %r : @[2,3,8:bf16]""",
)


def test_formula_becomes_rms_norm(check: Check) -> None:
    text = with_values(NORM, RIGHT)
    check(
        text,
        "recognize-rms-norm",
        """
        // CHECK: func.func @main(%[[X:.*]]: !torch.vtensor<[2,3,8],f32>, %[[W:.*]]: !torch.vtensor<[8],f32>)
        // CHECK-NOT: torch.aten.rsqrt
        // CHECK: %[[R:.*]] = torch.aten.rms_norm %[[X]], %{{.*}}, %[[W]], %{{.*}}
        // CHECK: return %[[R]]
        """,
    )
    assert_same_meaning(text, "recognize-rms-norm", [normal(2, 3, 8), normal(8, seed=1)])


def test_f32_copy_of_bf16_is_looked_through(check: Check) -> None:
    check(
        BF16,
        "recognize-rms-norm",
        """
        // CHECK: func.func @main(%[[X:.*]]: !torch.vtensor<[2,3,8],bf16>, %[[W:.*]]: !torch.vtensor<[8],bf16>)
        // CHECK-NOT: torch.aten.to.dtype
        // CHECK: %[[R:.*]] = torch.aten.rms_norm %[[X]], %{{.*}}, %[[W]], %{{.*}}
        // CHECK: return %[[R]]
        """,
    )


@pytest.mark.parametrize(
    "values",
    [{**RIGHT, "EXPONENT": "%i3"}, {**RIGHT, "REDUCTION": "sum.dim_IntList"}, {**RIGHT, "SCALED": "%sq"}],
    ids=["cube", "sum", "other-operand"],
)
def test_near_miss_stays(check: Check, values: dict[str, str]) -> None:
    check(with_values(NORM, values), "recognize-rms-norm", "// CHECK-NOT: torch.aten.rms_norm")
