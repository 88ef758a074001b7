"""raise-softmax: axis, logarithm and element type; a softmax that guards against -inf stays."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_softmax_and_its_logarithm(check: Check) -> None:
    text = function(
        "%x: @[2,3]",
        "@[2,3]",
        """
  %a = torch.aten.softmax.int %x, %m1, %none : @[2,3], !torch.int, !torch.none -> @[2,3]
  %b = torch.aten._log_softmax %a, %i0, %false : @[2,3], !torch.int, !torch.bool -> @[2,3]
  return %b : @[2,3]""",
    )
    check(
        text,
        "raise-softmax",
        """
        // CHECK: "lk.softmax"({{.*}}) {axis = 1 : i64, log = false}
        // CHECK: "lk.softmax"({{.*}}) {axis = 0 : i64, log = true}
        """,
    )


def test_element_type_is_converted_first(check: Check) -> None:
    text = function(
        "%x: @[2,3:bf16]",
        "@[2,3]",
        """
  %f32 = torch.constant.int 6
  %a = torch.aten.softmax.int %x, %m1, %f32 : @[2,3:bf16], !torch.int, !torch.int -> @[2,3]
  return %a : @[2,3]""",
    )
    check(text, "raise-softmax", '// CHECK: torch.aten.to.dtype\n// CHECK: "lk.softmax"({{.*}} : (tensor<2x3xf32>)')


def test_safe_softmax_stays(check: Check) -> None:
    text = function(
        "%x: @[2,3]",
        "@[2,3]",
        """
  %a = torch.aten._safe_softmax %x, %m1, %none : @[2,3], !torch.int, !torch.none -> @[2,3]
  return %a : @[2,3]""",
    )
    check(text, "raise-softmax", '// CHECK: torch.aten._safe_softmax\n// CHECK-NOT: "lk.softmax"')
