"""raise-views: dims of static shapes split and join; open ones become reshapes whose sizes are stated."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, function


def view(source: str, sizes: str, result: str) -> str:
    kinds = ", ".join(["!torch.int"] * len(sizes.split(",")))
    return function(
        f"%x: {source}",
        result,
        f"""
  %i4 = torch.constant.int 4
  %i6 = torch.constant.int 6
  %i32 = torch.constant.int 32
  %sizes = torch.prim.ListConstruct {sizes} : ({kinds}) -> !torch.list<int>
  %v = torch.aten.view %x, %sizes : {source}, !torch.list<int> -> {result}
  return %v : {result}""",
    )


def test_a_size_of_minus_one_is_what_the_others_leave(check: Check) -> None:
    check(
        view("@[?,?,32]", "%m1, %i32", "@[?,32]"),
        "raise-views",
        """
        // CHECK: %[[SOURCE:.*]] = torch_c.to_builtin_tensor
        // CHECK: %[[LEFT:.*]] = arith.divui %{{.*}}, %{{.*}} : index
        // CHECK: %[[SIZES:.*]] = tensor.from_elements %[[LEFT]], %{{.*}} : tensor<2xindex>
        // CHECK: tensor.reshape %[[SOURCE]](%[[SIZES]]) : (tensor<?x?x32xf32>, tensor<2xindex>) -> tensor<?x32xf32>
        """,
    )


@pytest.mark.parametrize(
    ("source", "sizes", "result", "found"),
    [
        ("@[2,3]", "%m1", "@[6]", "tensor.collapse_shape %{{.*}} {{\\[\\[}}0, 1]]"),
        ("@[6]", "%i2, %i3", "@[2,3]", "tensor.expand_shape %{{.*}} {{\\[\\[}}0, 1]] output_shape [2, 3]"),
        ("@[4,6]", "%i6, %i4", "@[6,4]", "into tensor<24xf32>\n// CHECK: output_shape [6, 4]"),
        ("@[2,3,4]", "%i6, %i2, %i2", "@[6,2,2]", "into tensor<6x4xf32>\n// CHECK: {{\\[\\[}}0], [1, 2]]"),
        ("@[0,3]", "%i2, %i0", "@[2,0]", "tensor.reshape {{.*}} -> tensor<2x0xf32>"),
    ],
)
def test_static_views_split_and_join_dims(check: Check, source: str, sizes: str, result: str, found: str) -> None:
    check(view(source, sizes, result), "raise-views", f"// CHECK: {found}")


def test_two_unknown_sizes_are_refused(check: Check) -> None:
    context = check(view("@[?,4]", "%m1, %m1", "@[?,?]"), "raise-views", "// CHECK: torch.aten.view")
    assert "more than one size is -1" in context.remarks[0]


def test_of_an_open_dim_the_rank_of_the_result_says_whether_it_is_one(check: Check) -> None:
    text = function("%x: @[?,4,1]", "@[4]", "\n  %v = torch.aten.squeeze %x : @[?,4,1] -> @[4]\n  return %v : @[4]")
    check(
        text,
        "raise-views",
        """
        // CHECK: %[[ONE:.*]] = tensor.cast %{{.*}} : tensor<?x4x1xf32> to tensor<1x4x1xf32>
        // CHECK: tensor.collapse_shape %[[ONE]] {{\\[\\[}}0, 1, 2]] : tensor<1x4x1xf32> into tensor<4xf32>
        """,
    )


def test_which_of_two_open_dims_is_one_is_not_guessed(check: Check) -> None:
    text = function("%x: @[?,?]", "@[?]", "\n  %v = torch.aten.squeeze %x : @[?,?] -> @[?]\n  return %v : @[?]")
    context = check(text, "raise-views", "// CHECK: torch.aten.squeeze")
    assert "which dims" in context.remarks[0]
