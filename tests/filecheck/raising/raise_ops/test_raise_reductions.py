"""raise-reductions: axes, element types, variance without float64; computed axes stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_integers_and_bools_are_summed_in_int64(check: Check) -> None:
    text = function(
        "%x: @[2,3:i1]",
        "@[2:si64]",
        """
  %d = torch.prim.ListConstruct %m1 : (!torch.int) -> !torch.list<int>
  %r = torch.aten.sum.dim_IntList %x, %d, %false, %none
      : @[2,3:i1], !torch.list<int>, !torch.bool, !torch.none -> @[2:si64]
  return %r : @[2:si64]""",
    )
    check(
        text,
        "raise-reductions",
        """
        // CHECK: torch.aten.to.dtype %{{.*}} -> !torch.vtensor<[2,3],si64>
        // CHECK: "lk.reduce"({{.*}}axes = array<i64: 1>, keep_dims = false, kind = "sum"}
        """,
    )


def test_maximum_with_its_position(check: Check) -> None:
    text = function(
        "%x: @[2,3]",
        "@[2,1], @[2,1:si64]",
        """
  %v, %i = torch.aten.max.dim %x, %m1, %true : @[2,3], !torch.int, !torch.bool -> @[2,1], @[2,1:si64]
  return %v, %i : @[2,1], @[2,1:si64]""",
    )
    check(text, "raise-reductions", '// CHECK: kind = "max"\n// CHECK: kind = "argmax"')


def test_variance_stays_in_the_precision_of_its_input(check: Check) -> None:
    text = function(
        "%x: @[2,8]",
        "@[2]",
        """
  %d = torch.prim.ListConstruct %i1 : (!torch.int) -> !torch.list<int>
  %r = torch.aten.var.correction %x, %d, %i1, %false
      : @[2,8], !torch.list<int>, !torch.int, !torch.bool -> @[2]
  return %r : @[2]""",
    )
    check(
        text,
        "raise-reductions",
        """
        // CHECK: "lk.reduce"({{.*}}kind = "mean"
        // CHECK: torch.aten.sub.Tensor
        // CHECK: "lk.reduce"({{.*}}kind = "sum"
        // CHECK: %[[N:.*]] = torch.constant.float 7.0
        // CHECK: torch.aten.div.Scalar %{{.*}}, %[[N]]
        """,
    )
    check(text, "raise-reductions,raise-pointwise,lower-types", "// CHECK-NOT: f64\n// CHECK: return")


def test_computed_axis_stays_and_says_so(check: Check) -> None:
    text = function(
        "%x: @[2,3], %axis: !torch.int",
        "@[?]",
        """
  %d = torch.prim.ListConstruct %axis : (!torch.int) -> !torch.list<int>
  %r = torch.aten.mean.dim %x, %d, %false, %none : @[2,3], !torch.list<int>, !torch.bool, !torch.none -> @[?]
  return %r : @[?]""",
    )
    context = check(text, "raise-reductions", '// CHECK: torch.aten.mean.dim\n// CHECK-NOT: "lk.reduce"')
    assert "an int argument is not a constant" in context.remarks[0]
