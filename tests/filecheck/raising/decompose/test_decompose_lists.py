"""decompose-lists: pieces become slices; a list that is read in an unknown way stays."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_split_becomes_slices(check: Check) -> None:
    text = function(
        "%x: @[2,5]",
        "@[2,3], @[2,2]",
        """
  %l = torch.aten.split.Tensor %x, %i3, %m1 : @[2,5], !torch.int, !torch.int -> !torch.list<vtensor>
  %a, %b = torch.prim.ListUnpack %l : !torch.list<vtensor> -> @[2,3], @[2,2]
  return %a, %b : @[2,3], @[2,2]""",
    )
    check(
        text,
        "decompose-lists",
        """
        // CHECK-NOT: torch.aten.split
        // CHECK: %[[A:.*]] = torch.aten.slice.Tensor %{{.*}} -> !torch.vtensor<[2,3],f32>
        // CHECK: %[[B:.*]] = torch.aten.slice.Tensor %{{.*}} -> !torch.vtensor<[2,2],f32>
        // CHECK-NOT: ListUnpack
        // CHECK: return %[[A]], %[[B]]
        """,
    )


def test_unbind_drops_the_dim(check: Check) -> None:
    text = function(
        "%x: @[2,5]",
        "@[5]",
        """
  %l = torch.aten.unbind.int %x, %i0 : @[2,5], !torch.int -> !torch.list<vtensor>
  %a = torch.aten.__getitem__.t %l, %i1 : !torch.list<vtensor>, !torch.int -> @[5]
  return %a : @[5]""",
    )
    check(
        text,
        "decompose-lists",
        """
        // CHECK: torch.aten.slice.Tensor %{{.*}} -> !torch.vtensor<[1,5],f32>
        // CHECK: %[[S:.*]] = torch.aten.slice.Tensor %{{.*}} -> !torch.vtensor<[1,5],f32>
        // CHECK: %[[A:.*]] = torch.aten.squeeze.dim %[[S]]
        // CHECK: return %[[A]]
        """,
    )


def test_split_of_a_dynamic_dim_is_cut_at_its_end(check: Check) -> None:
    text = function(
        "%x: @[?,5]",
        "@[?,5]",
        """
  %l = torch.aten.split.Tensor %x, %i3, %i0 : @[?,5], !torch.int, !torch.int -> !torch.list<vtensor>
  %a = torch.aten.__getitem__.t %l, %i1 : !torch.list<vtensor>, !torch.int -> @[?,5]
  return %a : @[?,5]""",
    )
    check(
        text,
        "decompose-lists",
        """
// CHECK: %[[END:.*]] = torch.constant.int 6
// CHECK: %[[PIECE:.*]] = torch.aten.slice.Tensor %arg0, %{{.*}}, %{{.*}}, %[[END]], %{{.*}} -> !torch.vtensor<[?,5]
// CHECK-NOT: torch.aten.split.Tensor
// CHECK: return %[[PIECE]]
""",
    )


def test_sections_of_a_dynamic_dim_stay_and_say_so(check: Check) -> None:
    text = function(
        "%x: @[?,5]",
        "@[?,5]",
        """
  %l = torch.aten.tensor_split.sections %x, %i3, %i0 : @[?,5], !torch.int, !torch.int -> !torch.list<vtensor>
  %a = torch.aten.__getitem__.t %l, %i1 : !torch.list<vtensor>, !torch.int -> @[?,5]
  return %a : @[?,5]""",
    )
    context = check(text, "decompose-lists", "// CHECK: torch.aten.tensor_split.sections")
    assert "dim 0 of f32[?, 5] is not known at compile time" in context.remarks[0]
    assert "dim 0 of f32[?, 5] is not known at compile time" in next(iter(context.refusals.values()))
