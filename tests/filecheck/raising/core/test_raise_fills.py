"""raise-fills: numbers are converted to the element type that the result states; what cannot be counted stays."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, function


def full(number: str, kind: str, dtype: str) -> str:
    return function(
        "",
        f"@[2:{dtype}]",
        f"""
  %n = torch.constant.{kind} {number}
  %sizes = torch.prim.ListConstruct %i2 : (!torch.int) -> !torch.list<int>
  %r = torch.aten.full %sizes, %n, %none, %none, %none, %none : !torch.list<int>, !torch.{kind}, !torch.none, """
        f"""!torch.none, !torch.none, !torch.none -> @[2:{dtype}]
  return %r : @[2:{dtype}]""",
    )


@pytest.mark.parametrize(
    ("number", "kind", "dtype", "constant"),
    [
        ("250", "int", "ui8", "-6 : i8"),
        ("5.000000e-01", "float", "i1", "true"),
        ("-2.500000e+00", "float", "si32", "-2 : i32"),
        ("1.000000e-01", "float", "bf16", "1.000980e-01 : bf16"),
    ],
)
def test_numbers_are_converted_once(check: Check, number: str, kind: str, dtype: str, constant: str) -> None:
    text = full(number, kind, dtype)
    check(text, "raise-fills", f"// CHECK: %[[N:.*]] = arith.constant {constant}\n// CHECK: linalg.fill ins(%[[N]]")


def test_a_range_of_open_length_counts_in_integers(check: Check) -> None:
    text = function(
        "%n: !torch.int",
        "@[?]",
        """
  %r = torch.aten.arange.start_step %i1, %n, %i2, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, """
        """!torch.none, !torch.none, !torch.none, !torch.none -> @[?]
  return %r : @[?]""",
    )
    check(
        text,
        "raise-fills",
        """
        // CHECK: arith.divui %{{.*}} : index
        // CHECK: linalg.index 0
        // CHECK: arith.muli %{{.*}} : i64
        // CHECK: arith.sitofp %{{.*}} : i64 to f32
        """,
    )


def test_a_literal_of_signed_integers_loses_its_sign_only(check: Check) -> None:
    text = function(
        "",
        "@[2:ui8]",
        """
  %r = torch.vtensor.literal(dense<[250, 3]> : tensor<2xui8>) : @[2:ui8]
  return %r : @[2:ui8]""",
    )
    check(text, "raise-fills", "// CHECK: arith.constant dense<[-6, 3]> : tensor<2xi8>")


def test_a_computed_number_of_steps_is_refused(check: Check) -> None:
    text = function(
        "%n: !torch.int",
        "@[?]",
        """
  %r = torch.aten.linspace %i0, %i1, %n, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, """
        """!torch.none, !torch.none, !torch.none, !torch.none -> @[?]
  return %r : @[?]""",
    )
    context = check(text, "raise-fills", "// CHECK: torch.aten.linspace")
    assert "a computed number of steps" in context.remarks[0]
