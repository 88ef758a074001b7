"""raise-pooling: ceil mode as padding, global pools as reductions, uneven windows spelled out; positions stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowerkit.dialect.window import Window
from tests.support.torch_text import Check, function

LISTS = """
  %two = torch.prim.ListConstruct %i2, %i2 : (!torch.int, !torch.int) -> !torch.list<int>
  %one = torch.prim.ListConstruct %i1, %i1 : (!torch.int, !torch.int) -> !torch.list<int>
  %zero = torch.prim.ListConstruct %i0, %i0 : (!torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>"""


def test_ceil_mode_is_high_padding(check: Check) -> None:
    text = function(
        "%x: @[1,3,5,6]",
        "@[1,3,3,3], @[1,3,3,3]",
        LISTS
        + """
  %r = torch.aten.max_pool2d %x, %two, %empty, %zero, %one, %true
      : @[1,3,5,6], !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool -> @[1,3,3,3]
  %s = torch.aten.avg_pool2d %x, %two, %empty, %zero, %true, %true, %none
      : @[1,3,5,6], !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.bool, !torch.none
        -> @[1,3,3,3]
  return %r, %s : @[1,3,3,3], @[1,3,3,3]""",
    )
    check(
        text,
        "raise-pooling",
        """
        // CHECK: "lk.max_pool"({{.*}}padding = array<i64: 0, 1, 0, 0>, strides = array<i64: 2, 2>
        // CHECK: "lk.avg_pool"({{.*}}ceil_extra = array<i64: 1, 0>, {{.*}}padding = array<i64: 0, 1, 0, 0>
        """,
    )


@pytest.mark.parametrize(
    ("window", "size", "high"),
    [
        (Window(kernel=3, stride=2, low=1, high=1), 7, 1),
        (Window(kernel=3, stride=2, low=1, high=1), 8, 2),
        # The last window would start at 4, in the padding beyond 3 + 1: PyTorch drops it.
        (Window(kernel=2, stride=2, low=1, high=1), 3, 1),
        (Window(kernel=3, stride=3, low=0, high=0, dilation=2), 9, 2),
    ],
)
def test_high_padding_of_ceil_mode(window: Window, size: int, high: int) -> None:
    above = replace(window, ceil=True)
    assert above.high_padding(size) == high
    assert replace(window, high=high).count(size) == above.count(size)
    assert window.high_padding(size) == window.low


def test_global_pool_is_a_reduction(check: Check) -> None:
    text = function(
        "%x: @[1,3,5,6]",
        "@[1,3,1,1]",
        LISTS
        + """
  %r = torch.aten.adaptive_avg_pool2d %x, %one : @[1,3,5,6], !torch.list<int> -> @[1,3,1,1]
  return %r : @[1,3,1,1]""",
    )
    check(text, "raise-pooling", '// CHECK: "lk.reduce"({{.*}}axes = array<i64: 2, 3>, keep_dims = true, kind = "mean"')


def test_uneven_adaptive_windows_overlap(check: Check) -> None:
    text = function(
        "%x: @[1,3,5,6]",
        "@[1,3,2,2]",
        LISTS
        + """
  %r = torch.aten.adaptive_avg_pool2d %x, %two : @[1,3,5,6], !torch.list<int> -> @[1,3,2,2]
  return %r : @[1,3,2,2]""",
    )
    check(
        text,
        "raise-pooling",
        """
        // CHECK: torch.aten.slice.Tensor %{{.*}} -> !torch.vtensor<[1,3,3,6],f32>
        // CHECK: torch.aten.slice.Tensor %{{.*}} -> !torch.vtensor<[1,3,3,6],f32>
        // CHECK: torch.aten.cat
        // CHECK: torch.aten.slice.Tensor %{{.*}} -> !torch.vtensor<[1,3,2,3],f32>
        """,
    )


def test_positions_that_are_read_stay_and_say_so(check: Check) -> None:
    text = function(
        "%x: @[1,3,4,6]",
        "@[1,3,2,3:si64]",
        LISTS
        + """
  %r, %p = torch.aten.max_pool2d_with_indices %x, %two, %two, %zero, %one, %false
      : @[1,3,4,6], !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool
        -> @[1,3,2,3], @[1,3,2,3:si64]
  return %p : @[1,3,2,3:si64]""",
    )
    context = check(text, "raise-pooling", '// CHECK-NOT: "lk.max_pool"')
    assert "the positions of the maxima are read" in context.remarks[0]
