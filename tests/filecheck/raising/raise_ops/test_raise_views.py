"""raise-views: views of unknown extents become reshapes whose sizes are stated; static ones stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_a_size_of_minus_one_is_what_the_others_leave(check: Check) -> None:
    text = function(
        "%x: @[?,?,32]",
        "@[?,32]",
        """
  %i32 = torch.constant.int 32
  %sizes = torch.prim.ListConstruct %m1, %i32 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %sizes : @[?,?,32], !torch.list<int> -> @[?,32]
  return %v : @[?,32]""",
    )
    check(
        text,
        "raise-views",
        """
        // CHECK: %[[SOURCE:.*]] = torch_c.to_builtin_tensor
        // CHECK: %[[LEFT:.*]] = arith.divui %{{.*}}, %[[OTHERS:.*]] : index
        // CHECK: %[[SIZES:.*]] = tensor.from_elements %[[LEFT]], %[[OTHERS]] : tensor<2xindex>
        // CHECK: tensor.reshape %[[SOURCE]](%[[SIZES]]) : (tensor<?x?x32xf32>, tensor<2xindex>) -> tensor<?x32xf32>
        """,
    )


def test_a_static_view_stays(check: Check) -> None:
    text = function(
        "%x: @[2,3]",
        "@[6]",
        """
  %sizes = torch.prim.ListConstruct %m1 : (!torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %sizes : @[2,3], !torch.list<int> -> @[6]
  return %v : @[6]""",
    )
    check(text, "raise-views", "// CHECK: torch.aten.view\n// CHECK-NOT: tensor.reshape")


def test_two_unknown_sizes_are_refused(check: Check) -> None:
    text = function(
        "%x: @[?,4]",
        "@[?,?]",
        """
  %sizes = torch.prim.ListConstruct %m1, %m1 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %sizes : @[?,4], !torch.list<int> -> @[?,?]
  return %v : @[?,?]""",
    )
    context = check(text, "raise-views", "// CHECK: torch.aten.view")
    assert "more than one size is -1" in context.remarks[0]
