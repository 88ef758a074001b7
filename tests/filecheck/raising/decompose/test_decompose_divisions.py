"""decompose-divisions: integers in integers, floats from an exact remainder; other roundings stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_integer_floor_division_does_not_use_floats(check: Check) -> None:
    text = function(
        "%x: @[2,3:si64], %y: @[3:si64]",
        "@[2,3:si64]",
        """
  %floor = torch.constant.str "floor"
  %r = torch.aten.div.Tensor_mode %x, %y, %floor : @[2,3:si64], @[3:si64], !torch.str -> @[2,3:si64]
  return %r : @[2,3:si64]""",
    )
    check(
        text,
        "decompose-divisions",
        """
        // CHECK: %[[MODE:.*]] = torch.constant.str "trunc"
        // CHECK: torch.aten.div.Tensor_mode %{{.*}}, %{{.*}}, %[[MODE]]
        // CHECK: torch.aten.bitwise_xor.Tensor
        """,
    )
    check(text, "decompose-divisions,decompose-moves,torch-to-linalg", "// CHECK: arith.divsi\n// CHECK-NOT: f64")


def test_float_remainder_and_truncation_stay(check: Check) -> None:
    text = function(
        "%x: @[2,3], %y: @[3]",
        "@[2,3], @[2,3]",
        """
  %trunc = torch.constant.str "trunc"
  %r = torch.aten.remainder.Tensor %x, %y : @[2,3], @[3] -> @[2,3]
  %s = torch.aten.div.Tensor_mode %x, %y, %trunc : @[2,3], @[3], !torch.str -> @[2,3]
  return %r, %s : @[2,3], @[2,3]""",
    )
    context = check(text, "decompose-divisions", "// CHECK: aten.remainder.Tensor\n// CHECK: aten.div.Tensor_mode")
    assert not context.remarks


def test_floor_division_of_floats_starts_from_the_remainder(check: Check) -> None:
    text = function(
        "%x: @[2,3], %y: @[3]",
        "@[2,3]",
        """
  %r = torch.aten.floor_divide %x, %y : @[2,3], @[3] -> @[2,3]
  return %r : @[2,3]""",
    )
    check(text, "decompose-divisions", "// CHECK: torch.aten.remainder.Tensor\n// CHECK-NOT: torch.aten.floor_divide")
    check(text, "decompose-divisions,torch-to-linalg", "// CHECK: arith.remf")
