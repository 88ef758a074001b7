"""raise-diagonals: a diagonal is read by its loop counters, and bounded where its length is open."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_a_triangle_keeps_bools(check: Check) -> None:
    text = function(
        "%x: @[?,4:i1]",
        "@[?,4:i1]",
        "\n  %r = torch.aten.tril %x, %m1 : @[?,4:i1], !torch.int -> @[?,4:i1]\n  return %r : @[?,4:i1]",
    )
    check(
        text,
        "raise-diagonals",
        """
        // CHECK: %[[IN:.*]] = arith.cmpi sle
        // CHECK: arith.select %[[IN]], %{{.*}}, %{{.*}} : i1
        """,
    )


def test_the_length_of_an_open_diagonal_is_the_shorter_side(check: Check) -> None:
    text = function(
        "%x: @[?,4]",
        "@[?]",
        """
  %r = torch.aten.diagonal %x, %i1, %i0, %i1 : @[?,4], !torch.int, !torch.int, !torch.int -> @[?]
  return %r : @[?]""",
    )
    check(
        text,
        "raise-diagonals",
        """
        // CHECK: %[[SHORTER:.*]] = arith.minsi
        // CHECK: arith.maxsi %[[SHORTER]]
        // CHECK: tensor.extract
        """,
    )


def test_an_axis_that_is_computed_is_refused(check: Check) -> None:
    text = function(
        "%x: @[4,4], %n: !torch.int",
        "@[4]",
        """
  %r = torch.aten.diagonal %x, %i0, %i0, %n : @[4,4], !torch.int, !torch.int, !torch.int -> @[4]
  return %r : @[4]""",
    )
    context = check(text, "raise-diagonals", "// CHECK: torch.aten.diagonal")
    assert "not a constant" in context.remarks[0]
