"""raise-cumulative: running sums; integers in int64; positions of running maxima stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_running_sum_of_bools_is_int64(check: Check) -> None:
    text = function(
        "%x: @[2,5:i1]",
        "@[2,5:si64]",
        """
  %r = torch.aten.cumsum %x, %m1, %none : @[2,5:i1], !torch.int, !torch.none -> @[2,5:si64]
  return %r : @[2,5:si64]""",
    )
    check(
        text,
        "raise-cumulative",
        """
        // CHECK: torch.aten.to.dtype
        // CHECK: "lk.cumulative"({{.*}}) {axis = 1 : i64, {{.*}}kind = "sum", reverse = false} : (tensor<2x5xi64>)
        """,
    )


def test_computed_axis_stays_and_says_so(check: Check) -> None:
    text = function(
        "%x: @[2,5], %axis: !torch.int",
        "@[2,5]",
        """
  %r = torch.aten.cumprod %x, %axis, %none : @[2,5], !torch.int, !torch.none -> @[2,5]
  return %r : @[2,5]""",
    )
    context = check(text, "raise-cumulative", "// CHECK: torch.aten.cumprod")
    assert "an int argument is not a constant" in context.remarks[0]
