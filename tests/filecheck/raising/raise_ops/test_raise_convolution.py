"""raise-convolution: padding on both sides, bias outside, transposed; computed windows stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function

LISTS = """
  %two = torch.prim.ListConstruct %i2, %i1 : (!torch.int, !torch.int) -> !torch.list<int>
  %one = torch.prim.ListConstruct %i1, %i1 : (!torch.int, !torch.int) -> !torch.list<int>
  %zero = torch.prim.ListConstruct %i0, %i0 : (!torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>"""


def test_convolution_with_bias(check: Check) -> None:
    text = function(
        "%x: @[1,4,9,7], %w: @[6,2,3,3], %b: @[6]",
        "@[1,6,5,7]",
        LISTS
        + """
  %r = torch.aten.conv2d %x, %w, %b, %two, %one, %one, %i2
      : @[1,4,9,7], @[6,2,3,3], @[6], !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.int -> @[1,6,5,7]
  return %r : @[1,6,5,7]""",
    )
    check(
        text,
        "raise-convolution",
        """
        // CHECK: "lk.conv"({{.*}}groups = 2 : i64, padding = array<i64: 1, 1, 1, 1>, strides = array<i64: 2, 1>}
        // CHECK: %[[B:.*]] = torch.aten.unsqueeze %{{.*}} -> !torch.vtensor<[6,1,1],f32>
        // CHECK: torch.aten.add.Tensor %{{.*}}, %[[B]]
        """,
    )


def test_transposed_convolution(check: Check) -> None:
    text = function(
        "%x: @[1,4,5,7], %w: @[4,3,3,3]",
        "@[1,3,11,7]",
        LISTS
        + """
  %extra = torch.prim.ListConstruct %i1, %i0 : (!torch.int, !torch.int) -> !torch.list<int>
  %pad = torch.prim.ListConstruct %i0, %i1 : (!torch.int, !torch.int) -> !torch.list<int>
  %r = torch.aten.convolution %x, %w, %none, %two, %pad, %one, %true, %zero, %i1
      : @[1,4,5,7], @[4,3,3,3], !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool,
        !torch.list<int>, !torch.int -> @[1,3,11,7]
  return %r : @[1,3,11,7]""",
    )
    check(
        text,
        "raise-convolution",
        '// CHECK: "lk.conv_transpose"({{.*}}output_padding = array<i64: 0, 0>, padding = array<i64: 0, 0, 1, 1>',
    )


def test_stride_that_is_not_constant_stays_and_says_so(check: Check) -> None:
    text = function(
        "%x: @[1,4,9,7], %w: @[6,4,3,3], %s: !torch.int",
        "@[1,6,?,?]",
        LISTS
        + """
  %stride = torch.prim.ListConstruct %s, %s : (!torch.int, !torch.int) -> !torch.list<int>
  %r = torch.aten.conv2d %x, %w, %none, %stride, %one, %one, %i1
      : @[1,4,9,7], @[6,4,3,3], !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.int
        -> @[1,6,?,?]
  return %r : @[1,6,?,?]""",
    )
    context = check(text, "raise-convolution", '// CHECK: torch.aten.conv2d\n// CHECK-NOT: "lk.conv"')
    assert "an int argument is not a constant" in context.remarks[0]
