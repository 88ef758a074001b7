"""raise-collectives: started where they are called, done where they are waited for; what cannot be raised says why."""

from __future__ import annotations

from tests.support.torch_text import Check, function

_AXIS = '{lk.axis = "tp", lk.ranks = 2 : i64}'


def collective(name: str, arguments: str, types: str, result: str, axis: str = _AXIS) -> str:
    return f"""
  %sum = torch.constant.str "sum"
  %avg = torch.constant.str "avg"
  %group = torch.constant.str "0"
  %c = torch.operator "torch._c10d_functional.{name}"({arguments}) {axis} : ({types}) -> {result}
  %r = torch.operator "torch._c10d_functional.wait_tensor"(%c) : ({result}) -> {result}
  return %r : {result}"""


def test_a_sum(check: Check) -> None:
    body = collective("all_reduce", "%x, %sum, %group", "@[2,5], !torch.str, !torch.str", "@[2,5]")
    check(
        function("%x: @[2,5]", "@[2,5]", body),
        "raise-collectives",
        """
        // CHECK: %[[S:.*]] = "lk.collective_start"({{.*}}) {axis = "tp", kind = "all_reduce", {{.*}}ranks = 2
        // CHECK: "lk.collective_done"(%[[S]])
        // CHECK-NOT: c10d
        """,
    )


def test_an_average_is_a_sum_and_a_division(check: Check) -> None:
    body = collective("all_reduce", "%x, %avg, %group", "@[2,5], !torch.str, !torch.str", "@[2,5]")
    check(
        function("%x: @[2,5]", "@[2,5]", body),
        "raise-collectives",
        """
        // CHECK: reduction = "sum"
        // CHECK: "lk.collective_done"
        // CHECK: torch.aten.div
        """,
    )


def test_what_is_gathered_is_joined_along_the_first_dimension(check: Check) -> None:
    body = collective("all_gather_into_tensor", "%x, %two, %group", "@[2,5], !torch.int, !torch.str", "@[4,5]")
    check(
        function("%x: @[2,5]", "@[4,5]", f"\n  %two = torch.constant.int 2{body}"),
        "raise-collectives",
        """
        // CHECK: kind = "all_gather"{{.*}} : (tensor<2x5xf32>) -> tensor<2x2x5xf32>
        // CHECK: tensor.collapse_shape {{.*}} : tensor<2x2x5xf32> into tensor<4x5xf32>
        """,
    )


def test_what_is_scattered_is_cut_along_the_first_dimension(check: Check) -> None:
    types = "@[4,5], !torch.str, !torch.int, !torch.str"
    body = collective("reduce_scatter_tensor", "%x, %sum, %two, %group", types, "@[2,5]")
    check(
        function("%x: @[4,5]", "@[2,5]", f"\n  %two = torch.constant.int 2{body}"),
        "raise-collectives",
        """
        // CHECK: tensor.expand_shape {{.*}} : tensor<4x5xf32> into tensor<2x2x5xf32>
        // CHECK: kind = "reduce_scatter"{{.*}} : (tensor<2x2x5xf32>) -> tensor<2x5xf32>
        """,
    )


def test_a_group_that_is_no_axis_stays_and_says_so(check: Check) -> None:
    body = collective("all_reduce", "%x, %sum, %group", "@[2,5], !torch.str, !torch.str", "@[2,5]", axis="")
    context = check(
        function("%x: @[2,5]", "@[2,5]", body), "raise-collectives", "// CHECK: torch._c10d_functional.all_reduce"
    )
    assert "no axis of a mesh" in context.remarks[0]


def test_another_size_of_the_group_stays(check: Check) -> None:
    body = collective("all_gather_into_tensor", "%x, %three, %group", "@[2,5], !torch.int, !torch.str", "@[6,5]")
    context = check(
        function("%x: @[2,5]", "@[6,5]", f"\n  %three = torch.constant.int 3{body}"),
        "raise-collectives",
        "// CHECK: torch._c10d_functional.all_gather_into_tensor",
    )
    assert "has 3 ranks, and it has 2" in context.remarks[0]


def test_a_reduction_that_there_is_not_stays(check: Check) -> None:
    body = collective("all_reduce", "%x, %bxor, %group", "@[2,5], !torch.str, !torch.str", "@[2,5]")
    context = check(
        function("%x: @[2,5]", "@[2,5]", f'\n  %bxor = torch.constant.str "bxor"{body}'),
        "raise-collectives",
        "// CHECK: torch._c10d_functional.all_reduce",
    )
    assert "the reduction 'bxor'" in context.remarks[0]
