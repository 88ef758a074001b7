"""raise-joins: parts get the element type of the whole before they are joined; unlike ranks are refused."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, function


def joined(name: str, left: str, right: str, result: str, dim: str = "") -> str:
    operands, kinds = (f", {dim}", ", !torch.int") if dim else ("", "")
    op = f'torch.operator "torch.aten.{name}"(%l{operands}) : (!torch.list<vtensor>{kinds}) -> {result}'
    return function(
        f"%a: {left}, %b: {right}",
        result,
        f"""
  %l = torch.prim.ListConstruct %a, %b : ({left}, {right}) -> !torch.list<vtensor>
  %r = {op}
  return %r : {result}""",
    )


@pytest.mark.parametrize(
    ("name", "dim", "shape", "whole", "axis"),
    [
        ("hstack", "", "[2]", "[4:si64]", 0),
        ("hstack", "", "[2,3]", "[2,6:si64]", 1),
        ("vstack", "", "[2]", "[2,2:si64]", 0),
        ("dstack", "", "[2]", "[1,2,2:si64]", 2),
        ("column_stack", "", "[2]", "[2,2:si64]", 1),
        ("cat", "%m1", "[2,3]", "[2,6:si64]", 1),
        ("stack", "%m1", "[2,3]", "[2,3,2:si64]", 2),
    ],
)
def test_parts_are_cast_first(check: Check, name: str, dim: str, shape: str, whole: str, axis: int) -> None:
    text = joined(name, f"@{shape[:-1]}:ui8]", f"@{shape[:-1]}:si64]", f"@{whole}", dim)
    check(
        text,
        "raise-joins",
        f"""
        // CHECK: torch.aten.to.dtype %{{{{.*}}}} {{{{.*}}}} -> !torch.vtensor<{shape},si64>
        // CHECK: tensor.concat dim({axis}) %{{{{.*}}}} : (tensor<{{{{.*}}}}xi64>, tensor<{{{{.*}}}}xi64>)
        """,
    )


def test_what_one_part_knows_of_an_extent_all_have(check: Check) -> None:
    check(
        joined("cat", "@[?,?]", "@[3,2]", "@[3,?]", "%i1"),
        "raise-joins",
        "// CHECK: tensor.cast %{{.*}} : tensor<?x?xf32> to tensor<3x?xf32>\n// CHECK: -> tensor<3x?xf32>",
    )


def test_a_vector_without_elements_fits_beside_any_tensor(check: Check) -> None:
    check(
        joined("cat", "@[0]", "@[3,2]", "@[3,2]", "%i1"),
        "raise-joins",
        "// CHECK-NOT: tensor.concat\n// CHECK: torch_c.to_builtin_tensor %arg1",
    )


def test_parts_of_unlike_ranks_are_refused(check: Check) -> None:
    context = check(joined("cat", "@[2]", "@[3,2]", "@[3,2]", "%i1"), "raise-joins", "// CHECK: torch.operator")
    assert "parts of unlike ranks" in context.remarks[0]
