"""fold-empty-tensors: what gives only tensors without elements goes; what reads such tensors stays."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_an_op_whose_result_has_no_elements_goes(check: Check) -> None:
    text = function(
        "%x: @[1,12,0]",
        "@[2,12,0]",
        """
  %repeats = torch.prim.ListConstruct %i2, %i1, %i1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.repeat %x, %repeats : @[1,12,0], !torch.list<int> -> @[2,12,0]
  return %y : @[2,12,0]""",
    )
    check(
        text,
        "fold-empty-tensors",
        """
// CHECK-NOT: torch.aten
// CHECK: tensor.empty() : tensor<2x12x0xf32>
// CHECK-NOT: torch.aten
// CHECK: return""",
    )


def test_a_sum_over_no_elements_stays(check: Check) -> None:
    text = function(
        "%x: @[12,0]",
        "@[12]",
        """
  %dims = torch.prim.ListConstruct %i1 : (!torch.int) -> !torch.list<int>
  %y = torch.aten.sum.dim_IntList %x, %dims, %false, %none
      : @[12,0], !torch.list<int>, !torch.bool, !torch.none -> @[12]
  return %y : @[12]""",
    )
    check(text, "fold-empty-tensors", "// CHECK: torch.aten.sum.dim_IntList")


def test_an_extent_that_nothing_states_is_not_taken_for_empty(check: Check) -> None:
    text = function("%x: @[?]", "@[?]", "\n  %y = torch.aten.neg %x : @[?] -> @[?]\n  return %y : @[?]")
    check(text, "fold-empty-tensors", "// CHECK: torch.aten.neg")


def test_one_of_two_results_with_elements_keeps_the_op(check: Check) -> None:
    text = function(
        "%x: @[12,0]",
        "@[12,0]",
        """
  %y:2 = torch.aten.var_mean.correction %x, %none, %none, %true
      : @[12,0], !torch.none, !torch.none, !torch.bool -> @[1,1], @[1,1]
  %z = torch.aten.mul.Tensor %x, %y#0 : @[12,0], @[1,1] -> @[12,0]
  return %z : @[12,0]""",
    )
    check(text, "fold-empty-tensors", "// CHECK: torch.aten.var_mean.correction\n// CHECK-NOT: torch.aten.mul")
