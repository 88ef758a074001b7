"""raise-slices: parts of static extents state their bounds, those of open ones are brought into the tensor."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, function


def sliced(source: str, start: str, end: str, step: str, result: str) -> str:
    return function(
        f"%x: {source}",
        result,
        f"""
  %i9 = torch.constant.int 9
  %r = torch.aten.slice.Tensor %x, %i0, {start}, {end}, {step} : {source}, !torch.int, !torch.int, !torch.int, """
        f"""!torch.int -> {result}
  return %r : {result}""",
    )


@pytest.mark.parametrize(
    ("start", "end", "step", "result", "found"),
    [
        ("%i1", "%i9", "%i1", "@[4,2]", "[1, 0] [4, 2] [1, 1]"),
        ("%m1", "%i9", "%i1", "@[1,2]", "[4, 0] [1, 2] [1, 1]"),
        ("%i0", "%i9", "%i2", "@[3,2]", "[0, 0] [3, 2] [2, 1]"),
    ],
)
def test_bounds_of_static_extents(check: Check, start: str, end: str, step: str, result: str, found: str) -> None:
    text = sliced("@[5,2]", start, end, step, result)
    check(text, "raise-slices", f"// CHECK: tensor.extract_slice %{{{{.*}}}}{found}")


def test_a_start_that_counts_from_the_end_of_an_open_dim(check: Check) -> None:
    check(
        sliced("@[?,2]", "%m1", "%i9", "%i1", "@[?,2]"),
        "raise-slices",
        """
        // CHECK: %[[FROM_END:.*]] = arith.addi
        // CHECK: %[[START:.*]] = arith.maxsi %[[FROM_END]]
        // CHECK: tensor.extract_slice %{{.*}}[%[[START]], 0]
        """,
    )


def test_a_position_that_is_computed_is_clamped(check: Check) -> None:
    text = function(
        "%x: @[5,2], %n: !torch.int",
        "@[2]",
        """
  %r = torch.aten.select.int %x, %i0, %n : @[5,2], !torch.int, !torch.int -> @[2]
  return %r : @[2]""",
    )
    check(
        text,
        "raise-slices",
        """
        // CHECK: arith.select
        // CHECK: arith.minsi
        // CHECK: %[[AT:.*]] = arith.maxsi
        // CHECK: tensor.extract_slice %{{.*}}[%[[AT]], 0] [1, 2] [1, 1]
        """,
    )


def test_a_slice_that_turns_around_is_refused(check: Check) -> None:
    context = check(
        sliced("@[5,2]", "%i0", "%i9", "%m1", "@[5,2]"), "raise-slices", "// CHECK: torch.aten.slice.Tensor"
    )
    assert "a step of -1" in context.remarks[0]
