"""raise-numbers: what is constant stays a constant, the rest is arith on i64, f64 and i1."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_sizes_of_static_dims_are_constants(check: Check) -> None:
    text = function(
        "%x: @[4,?]",
        "!torch.int",
        """
  %n = torch.aten.size.int %x, %i0 : @[4,?], !torch.int -> !torch.int
  %r = torch.aten.floordiv.int %n, %i3 : !torch.int, !torch.int -> !torch.int
  return %r : !torch.int""",
    )
    check(text, "raise-numbers", "// CHECK: %[[N:int1.*]] = torch.constant.int 1\n// CHECK: return %[[N]]")


def test_division_rounds_down_and_floats_meet_ints_in_f64(check: Check) -> None:
    text = function(
        "%x: @[?,?], %f: !torch.float",
        "!torch.int, !torch.bool",
        """
  %n = torch.aten.size.int %x, %m1 : @[?,?], !torch.int -> !torch.int
  %r = torch.aten.floordiv.int %n, %i3 : !torch.int, !torch.int -> !torch.int
  %t = torch.aten.gt.float_int %f, %n : !torch.float, !torch.int -> !torch.bool
  return %r, %t : !torch.int, !torch.bool""",
    )
    check(
        text,
        "raise-numbers",
        """
        // CHECK: %[[DIM:.*]] = tensor.dim
        // CHECK: %[[N:.*]] = arith.index_cast %[[DIM]] : index to i64
        // CHECK: arith.floordivsi %[[N]], %{{.*}} : i64
        // CHECK: arith.sitofp %[[N]] : i64 to f64
        // CHECK: arith.cmpf ogt
        """,
    )


def test_an_unsigned_element_is_read_without_sign(check: Check) -> None:
    text = function(
        "%x: @[:ui8]", "!torch.int", "\n  %r = torch.aten.item %x : @[:ui8] -> !torch.int\n  return %r : !torch.int"
    )
    check(text, "raise-numbers", "// CHECK: tensor.extract\n// CHECK: arith.extui %{{.*}} : i8 to i64")


def test_a_division_of_constants_by_zero_is_refused(check: Check) -> None:
    text = function(
        "",
        "!torch.int",
        """
  %r = torch.aten.floordiv.int %i3, %i0 : !torch.int, !torch.int -> !torch.int
  return %r : !torch.int""",
    )
    context = check(text, "raise-numbers", "// CHECK: torch.aten.floordiv.int")
    assert "cannot be computed" in context.remarks[0]
