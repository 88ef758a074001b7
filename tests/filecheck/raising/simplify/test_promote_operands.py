"""promote-operands: the parts of a concatenation get the type of the result; those that have it stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_parts_of_another_type_are_converted(check: Check) -> None:
    text = function(
        "%x: @[4:ui8], %y: @[4:si64]",
        "@[8:si64]",
        """
  %l = torch.prim.ListConstruct %x, %y : (@[4:ui8], @[4:si64]) -> !torch.list<vtensor>
  %r = torch.aten.cat %l, %i0 : !torch.list<vtensor>, !torch.int -> @[8:si64]
  return %r : @[8:si64]""",
    )
    check(
        text,
        "promote-operands",
        """
        // CHECK: %[[X:.*]] = torch.aten.to.dtype %{{.*}} -> !torch.vtensor<[4],si64>
        // CHECK: torch.prim.ListConstruct %[[X]], %{{.*}}
        // CHECK-NOT: to.dtype
        """,
    )


def test_parts_of_one_type_stay(check: Check) -> None:
    text = function(
        "%x: @[4], %y: @[4]",
        "@[8]",
        """
  %l = torch.prim.ListConstruct %x, %y : (@[4], @[4]) -> !torch.list<vtensor<[4],f32>>
  %r = torch.aten.cat %l, %i0 : !torch.list<vtensor<[4],f32>>, !torch.int -> @[8]
  return %r : @[8]""",
    )
    context = check(text, "promote-operands", "// CHECK-NOT: torch.aten.to.dtype\n// CHECK: return")
    assert not context.remarks
