"""raise-index-checks: a check beside the index; the reader gets the index itself; equal checks are one."""

from __future__ import annotations

import pytest

from lowerkit.errors import PassError
from tests.support.torch_text import Check, function

_CHECKED = (
    '"torch.lowerkit.checked_indices"(%i, %sizes, {wraps}, {exempt}, %name) : (@[3:si64], !torch.list<int>, '
    "!torch.bool, !torch.{kind}, !torch.str) -> @[3:si64]"
)


def _function(*bodies: str, sizes: str = "%i5 = torch.constant.int 5", count: int = 1) -> str:
    listed = ", ".join(["%i5"] * count)
    return function(
        "%x: @[?,4], %i: @[3:si64]",
        "@[3,4], @[3,4]",
        f"""
  {sizes}
  %name = torch.constant.str "index_select"
  %sizes = torch.prim.ListConstruct {listed} : ({", ".join(["!torch.int"] * count)}) -> !torch.list<int>
  %a = torch.operator {bodies[0]}
  %b = torch.operator {bodies[-1]}
  %r = torch.aten.index_select %x, %i0, %a : @[?,4], !torch.int, @[3:si64] -> @[3,4]
  %s = torch.aten.index_select %x, %i0, %b : @[?,4], !torch.int, @[3:si64] -> @[3,4]
  return %r, %s : @[3,4], @[3,4]""",
    )


def test_a_known_extent(check: Check) -> None:
    plain = _CHECKED.format(wraps="%false", exempt="%none", kind="none")
    check(
        _function(plain, plain),
        "raise-index-checks",
        """
        // CHECK: func.func @main(%{{.*}}, %[[I:.*]]: !torch.vtensor<[3],si64>)
        // CHECK: %[[J:.*]] = torch_c.to_builtin_tensor %[[I]]
        // CHECK: %[[N:.*]] = arith.constant 5 : index
        // CHECK: "lk.check_indices"(%[[J]], %[[N]]) {exempt = array<i64>, operator = "index_select", wraps = false}
        // CHECK-NOT: lk.check_indices
        // CHECK-NOT: torch.operator
        // CHECK: torch.aten.index_select %{{.*}}, %{{.*}}, %[[I]]
        // CHECK: torch.aten.index_select %{{.*}}, %{{.*}}, %[[I]]
        """,
    )


def test_what_makes_checks_differ(check: Check) -> None:
    exempt = _CHECKED.format(wraps="%true", exempt="%m1", kind="int")
    check(
        _function(exempt, exempt.replace("%true", "%false")),
        "raise-index-checks",
        """
        // CHECK: "lk.check_indices"({{.*}}) {exempt = array<i64: -1>, operator = "index_select", wraps = true}
        // CHECK: "lk.check_indices"({{.*}}) {exempt = array<i64: -1>, operator = "index_select", wraps = false}
        """,
    )


def test_an_extent_of_a_call(check: Check) -> None:
    plain = _CHECKED.format(wraps="%false", exempt="%none", kind="none")
    check(
        _function(plain, sizes="%i5 = torch.aten.size.int %x, %i0 : @[?,4], !torch.int -> !torch.int"),
        "raise-index-checks",
        """
        // CHECK: %[[N:.*]] = torch.aten.size.int
        // CHECK: %[[M:.*]] = torch_c.to_i64 %[[N]]
        // CHECK: %[[K:.*]] = arith.index_cast %[[M]] : i64 to index
        // CHECK: "lk.check_indices"(%{{.*}}, %[[K]])
        """,
    )


def test_tuples_have_an_extent_for_each_part(check: Check) -> None:
    plain = _CHECKED.format(wraps="%true", exempt="%none", kind="none")
    check(
        _function(plain, count=3),
        "raise-index-checks",
        '// CHECK: "lk.check_indices"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {',
    )


def test_a_size_that_is_not_spelled_out_is_no_check(check: Check) -> None:
    text = _function(_CHECKED.format(wraps="%false", exempt="%none", kind="none"))
    unknown = text.replace("!torch.list<int>\n  %a", "!torch.list<int>\n  %wide = torch.constant.bool true\n  %a")
    with pytest.raises(PassError, match="LK3004"):
        check(unknown.replace("[3:si64]", "[3]").replace("[3],si64", "[3],f32"), "raise-index-checks", "")
