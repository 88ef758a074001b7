"""raise-permutations: dims change places by linalg.transpose, elements by look-ups and slices."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_an_order_of_dims(check: Check) -> None:
    text = function(
        "%x: @[2,?,4]",
        "@[4,2,?]",
        """
  %order = torch.prim.ListConstruct %m1, %i0, %i1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %r = torch.aten.permute %x, %order : @[2,?,4], !torch.list<int> -> @[4,2,?]
  return %r : @[4,2,?]""",
    )
    check(text, "raise-permutations", "// CHECK: outs(%{{.*}} : tensor<4x2x?xf32>) permutation = [2, 0, 1]")


def test_a_vector_transposed_is_itself(check: Check) -> None:
    text = function("%x: @[3]", "@[3]", "\n  %r = torch.aten.t %x : @[3] -> @[3]\n  return %r : @[3]")
    check(text, "raise-permutations", "// CHECK-NOT: linalg.transpose\n// CHECK-NOT: torch.aten.t")


def test_an_open_dim_is_reversed_by_counted_positions(check: Check) -> None:
    text = function(
        "%x: @[?,2]",
        "@[?,2]",
        """
  %dims = torch.prim.ListConstruct %i0 : (!torch.int) -> !torch.list<int>
  %r = torch.aten.flip %x, %dims : @[?,2], !torch.list<int> -> @[?,2]
  return %r : @[?,2]""",
    )
    check(
        text,
        "raise-permutations",
        """
        // CHECK: %[[LAST:.*]] = arith.subi
        // CHECK: arith.subi %[[LAST]], %{{.*}} : index
        // CHECK: "lk.gather"(%{{.*}}) {axis = 0 : i64} : (tensor<?x2xf32>, tensor<?xi64>)
        """,
    )


def test_an_open_dim_may_be_shorter_than_the_shift(check: Check) -> None:
    text = function(
        "%x: @[?]",
        "@[?]",
        """
  %l = torch.prim.ListConstruct %i3 : (!torch.int) -> !torch.list<int>
  %d = torch.prim.ListConstruct %i0 : (!torch.int) -> !torch.list<int>
  %r = torch.aten.roll %x, %l, %d : @[?], !torch.list<int>, !torch.list<int> -> @[?]
  return %r : @[?]""",
    )
    check(text, "raise-permutations", "// CHECK: arith.floordivsi\n// CHECK: tensor.concat dim(0)")


def test_a_computed_shift_counts_around_the_end(check: Check) -> None:
    text = function(
        "%x: @[4], %n: !torch.int",
        "@[4]",
        """
  %l = torch.prim.ListConstruct %n : (!torch.int) -> !torch.list<int>
  %d = torch.prim.ListConstruct %i0 : (!torch.int) -> !torch.list<int>
  %r = torch.aten.roll %x, %l, %d : @[4], !torch.list<int>, !torch.list<int> -> @[4]
  return %r : @[4]""",
    )
    check(text, "raise-permutations", "// CHECK: arith.floordivsi\n// CHECK: tensor.concat dim(0)")


def test_a_computed_dim_is_refused(check: Check) -> None:
    text = function(
        "%x: @[4], %n: !torch.int",
        "@[4]",
        """
  %d = torch.prim.ListConstruct %n : (!torch.int) -> !torch.list<int>
  %r = torch.aten.flip %x, %d : @[4], !torch.list<int> -> @[4]
  return %r : @[4]""",
    )
    context = check(text, "raise-permutations", "// CHECK: torch.aten.flip")
    assert "not a constant" in context.remarks[0]
