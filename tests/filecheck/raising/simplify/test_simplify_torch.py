"""simplify-torch: what does nothing goes; what does something stays."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_copies_and_conversions_to_the_same_type_go(check: Check) -> None:
    text = function(
        "%x: @[2,3]",
        "@[2,3]",
        """
  %p = torch.constant.float 0.5
  %f32 = torch.constant.int 6
  %shape = torch.prim.ListConstruct %i2, %i3 : (!torch.int, !torch.int) -> !torch.list<int>
  %a = torch.aten.clone %x, %none : @[2,3], !torch.none -> @[2,3]
  %b = torch.aten.dropout %a, %p, %false : @[2,3], !torch.float, !torch.bool -> @[2,3]
  %c = torch.aten.to.dtype %b, %f32, %false, %false, %none
      : @[2,3], !torch.int, !torch.bool, !torch.bool, !torch.none -> @[2,3]
  %d = torch.aten.view %c, %shape : @[2,3], !torch.list<int> -> @[2,3]
  %e = torch.aten.slice.Tensor %d, %i0, %i0, %i2, %i1
      : @[2,3], !torch.int, !torch.int, !torch.int, !torch.int -> @[2,3]
  return %e : @[2,3]""",
    )
    check(
        text, "simplify-torch", "// CHECK: @main(%[[X:.*]]: !torch\n// CHECK-NOT: torch.aten\n// CHECK: return %[[X]]"
    )


def test_dropout_in_training_mode_stays_and_says_so(check: Check) -> None:
    text = function(
        "%x: @[2,3]",
        "@[2,3]",
        """
  %p = torch.constant.float 0.5
  %b = torch.aten.dropout %x, %p, %true : @[2,3], !torch.float, !torch.bool -> @[2,3]
  return %b : @[2,3]""",
    )
    context = check(text, "simplify-torch", "// CHECK: torch.aten.dropout")
    assert any("training mode" in remark and "aten.dropout (f32 2x3)" in remark for remark in context.remarks)


def test_views_that_change_something_stay(check: Check) -> None:
    text = function(
        "%x: @[2,3], %d: @[?,3]",
        "@[3,2], @[?,3], @[2,3:bf16]",
        """
  %bf16 = torch.constant.int 15
  %size = torch.aten.size.int %d, %i0 : @[?,3], !torch.int -> !torch.int
  %turned = torch.prim.ListConstruct %i3, %i2 : (!torch.int, !torch.int) -> !torch.list<int>
  %same = torch.prim.ListConstruct %size, %i3 : (!torch.int, !torch.int) -> !torch.list<int>
  %a = torch.aten.view %x, %turned : @[2,3], !torch.list<int> -> @[3,2]
  %b = torch.aten.view %d, %same : @[?,3], !torch.list<int> -> @[?,3]
  %c = torch.aten.to.dtype %x, %bf16, %false, %false, %none
      : @[2,3], !torch.int, !torch.bool, !torch.bool, !torch.none -> @[2,3:bf16]
  return %a, %b, %c : @[3,2], @[?,3], @[2,3:bf16]""",
    )
    check(
        text,
        "simplify-torch",
        """
        // CHECK: torch.aten.view %{{.*}} -> !torch.vtensor<[3,2],f32>
        // CHECK: torch.aten.view %{{.*}} -> !torch.vtensor<[?,3],f32>
        // CHECK: torch.aten.to.dtype
        """,
    )
