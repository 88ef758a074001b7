"""promote-operands: operands get the type that PyTorch computes in; those that have it stay."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.torch_text import Check, function, raised


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
        "promote-operands",
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
        "promote-operands",
        """
        // CHECK: %[[X:.*]] = torch.aten.to.dtype %{{.*}} -> !torch.vtensor<[4],f32>
        // CHECK: torch.aten.div.Scalar %[[X]], %{{.*}} -> !torch.vtensor<[4],f32>
        """,
    )


def test_operands_of_one_type_stay(check: Check) -> None:
    text = function(
        "%x: @[4:si64], %y: @[4]",
        "@[4:si64], @[4:i1], @[4]",
        """
  %r = torch.aten.floor_divide %x, %x : @[4:si64], @[4:si64] -> @[4:si64]
  %s = torch.aten.gt.Tensor %y, %y : @[4], @[4] -> @[4:i1]
  %t = torch.aten.add.Scalar %y, %i1, %i1 : @[4], !torch.int, !torch.int -> @[4]
  return %r, %s, %t : @[4:si64], @[4:i1], @[4]""",
    )
    context = check(text, "promote-operands", "// CHECK-NOT: torch.aten.to.dtype\n// CHECK: return")
    assert not context.remarks


@pytest.mark.parametrize(
    ("left", "right", "compared"),
    [
        ("4:i1", "4:si64", "si64"),
        ("4:i1", "4:i1", "si32"),
        ("4:si8", "4:ui8", "si16"),
        ("4:ui8", "4:ui8", "si32"),
        ("4:f16", "4:bf16", "f32"),
        ("4:f16", ":f64", "f16"),
        ("4:si64", ":f64", "f64"),
        ("4:si8", ":si64", "si32"),
        ("4:i1", ":si64", "si64"),
        (":si8", ":si64", "si64"),
    ],
)
def test_comparisons_are_made_in_the_type_of_pytorch(check: Check, left: str, right: str, compared: str) -> None:
    """A tensor of rank 0 counts only where it is of a higher kind; bytes and bools are compared in 32 bits."""
    shape = "4" if "4" in left + right else ""
    text = function(
        f"%x: @[{left}], %y: @[{right}]",
        f"@[{shape}:i1]",
        f"\n  %r = torch.aten.gt.Tensor %x, %y : @[{left}], @[{right}] -> @[{shape}:i1]\n  return %r : @[{shape}:i1]",
    )
    pattern = "torch.aten.gt.Tensor %{{.*}}, %{{.*}} : !torch.vtensor<[{{4?}}]," + compared
    check(text, "promote-operands", f"// CHECK: {pattern}>, !torch.vtensor<[{{{{4?}}}}],{compared}>")


def test_shifts_by_the_width_leave_nothing_but_the_sign() -> None:
    text = function(
        "%x: @[4:si32], %n: @[4:si32]",
        "@[4:si32], @[4:si32]",
        """
  %r = torch.aten.bitwise_left_shift.Tensor %x, %n : @[4:si32], @[4:si32] -> @[4:si32]
  %s = torch.aten.bitwise_right_shift.Tensor %x, %n : @[4:si32], @[4:si32] -> @[4:si32]
  return %r, %s : @[4:si32], @[4:si32]""",
    )
    x, count = np.array([5, -5, -5, 5], np.int32), np.array([1, 32, -1, 31], np.int32)
    left, right = raised(text, [x, count])
    np.testing.assert_array_equal(left, [10, 0, 0, -(1 << 31)])
    np.testing.assert_array_equal(right, [2, -1, -1, 0])
