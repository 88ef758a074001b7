"""widen-unsigned: bytes are divided as 32-bit integers, converted before they meet floats; other integers stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_a_quotient_of_bytes_is_computed_in_32_bits(check: Check) -> None:
    text = function(
        "%x: @[4:ui8], %y: @[4:ui8]",
        "@[4:ui8]",
        """
  %r = torch.aten.floor_divide %x, %y : @[4:ui8], @[4:ui8] -> @[4:ui8]
  return %r : @[4:ui8]""",
    )
    check(
        text,
        "widen-unsigned",
        """
        // CHECK: %[[X:.*]] = torch.aten.to.dtype %{{.*}} -> !torch.vtensor<[4],si32>
        // CHECK: %[[Y:.*]] = torch.aten.to.dtype %{{.*}} -> !torch.vtensor<[4],si32>
        // CHECK: %[[Q:.*]] = torch.aten.floor_divide %[[X]], %[[Y]] : {{.*}} -> !torch.vtensor<[4],si32>
        // CHECK: %[[R:.*]] = torch.aten.to.dtype %[[Q]], %{{.*}} -> !torch.vtensor<[4],ui8>
        // CHECK: return %[[R]]
        """,
    )


def test_bytes_become_floats_before_they_are_divided(check: Check) -> None:
    text = function(
        "%x: @[4:ui8]",
        "@[4]",
        """
  %r = torch.aten.div.Scalar %x, %i1 : @[4:ui8], !torch.int -> @[4]
  return %r : @[4]""",
    )
    check(
        text,
        "widen-unsigned",
        """
        // CHECK: %[[X:.*]] = torch.aten.to.dtype %{{.*}} -> !torch.vtensor<[4],f32>
        // CHECK: torch.aten.div.Scalar %[[X]], %{{.*}} -> !torch.vtensor<[4],f32>
        """,
    )


def test_signed_integers_and_comparisons_of_bytes_stay(check: Check) -> None:
    text = function(
        "%x: @[4:si8], %y: @[4:ui8]",
        "@[4:si8], @[4:i1]",
        """
  %r = torch.aten.floor_divide %x, %x : @[4:si8], @[4:si8] -> @[4:si8]
  %s = torch.aten.gt.Tensor %y, %y : @[4:ui8], @[4:ui8] -> @[4:i1]
  return %r, %s : @[4:si8], @[4:i1]""",
    )
    context = check(text, "widen-unsigned", "// CHECK-NOT: torch.aten.to.dtype\n// CHECK: return")
    assert not context.remarks
