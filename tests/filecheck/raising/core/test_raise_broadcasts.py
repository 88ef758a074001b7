"""raise-broadcasts: dims of extent 1 repeat, new ones stand in front; what repeats joins its dim."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_expand_repeats_what_has_one_element(check: Check) -> None:
    text = function(
        "%x: @[?,1]",
        "@[2,?,3]",
        """
  %sizes = torch.prim.ListConstruct %i2, %m1, %i3 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %r = torch.aten.expand %x, %sizes, %false : @[?,1], !torch.list<int>, !torch.bool -> @[2,?,3]
  return %r : @[2,?,3]""",
    )
    check(
        text,
        "raise-broadcasts",
        """
        // CHECK: affine_map<(d0, d1, d2) -> (d1)>
        // CHECK: %[[ROW:.*]] = tensor.collapse_shape %{{.*}} : tensor<?x1xf32> into tensor<?xf32>
        // CHECK: linalg.generic {{.*}} ins(%[[ROW]] : tensor<?xf32>) outs(%{{.*}} : tensor<2x?x3xf32>)
        """,
    )


def test_repetitions_join_the_dim_that_repeats(check: Check) -> None:
    text = function(
        "%x: @[4]",
        "@[2,12]",
        """
  %times = torch.prim.ListConstruct %i2, %i3 : (!torch.int, !torch.int) -> !torch.list<int>
  %r = torch.aten.repeat %x, %times : @[4], !torch.list<int> -> @[2,12]
  return %r : @[2,12]""",
    )
    check(
        text,
        "raise-broadcasts",
        """
        // CHECK: outs(%{{.*}} : tensor<2x3x4xf32>)
        // CHECK: tensor.collapse_shape %{{.*}} : tensor<2x3x4xf32> into tensor<2x12xf32>
        """,
    )


def test_sizes_that_are_not_spelled_out_are_refused(check: Check) -> None:
    text = function(
        "%x: @[1], %sizes: !torch.list<int>",
        "@[4]",
        """
  %r = torch.aten.broadcast_to %x, %sizes : @[1], !torch.list<int> -> @[4]
  return %r : @[4]""",
    )
    context = check(text, "raise-broadcasts", "// CHECK: torch.aten.broadcast_to")
    assert "not spelled out" in context.remarks[0]
