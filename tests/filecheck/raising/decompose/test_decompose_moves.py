"""decompose-moves: padding by elements becomes a look-up by constant positions; impossible amounts stay."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, function, with_values

PAD = function(
    "%x: @[2,4]",
    "RESULT",
    """
  %amount = torch.prim.ListConstruct LOW, %i1 : (!torch.int, !torch.int) -> !torch.list<int>
  %mode = torch.constant.str "MODE"
  %r = torch.aten.pad %x, %amount, %mode, %none : @[2,4], !torch.list<int>, !torch.str, !torch.none -> RESULT
  return %r : RESULT""",
)
RESULT = "!torch.vtensor<[2,7],f32>"


@pytest.mark.parametrize(
    ("mode", "positions"),
    [("reflect", "2, 1, 0, 1, 2, 3, 2"), ("replicate", "0, 0, 0, 1, 2, 3, 3"), ("circular", "2, 3, 0, 1, 2, 3, 0")],
)
def test_padding_by_elements(check: Check, mode: str, positions: str) -> None:
    check(
        with_values(PAD, {"LOW": "%i2", "MODE": mode, "RESULT": RESULT}),
        "decompose-moves",
        f"""
        // CHECK: %[[P:.*]] = arith.constant dense<[{positions}]> : tensor<7xi64>
        // CHECK: "lk.gather"(%{{{{.*}}}}, %[[P]]) {{axis = 1 : i64}}
        """,
    )


def test_constant_padding_is_left_to_the_conversion(check: Check) -> None:
    text = with_values(PAD, {"LOW": "%i2", "MODE": "constant", "RESULT": RESULT})
    check(text, "decompose-moves", "// CHECK: torch.aten.constant_pad_nd")


def test_reflection_beyond_the_tensor_stays_and_says_so(check: Check) -> None:
    text = with_values(PAD, {"LOW": "%i4", "MODE": "reflect", "RESULT": "!torch.vtensor<[2,9],f32>"})
    text = text.replace("%amount =", "%i4 = torch.constant.int 4\n  %amount =")
    context = check(text, "decompose-moves", "// CHECK: torch.aten.pad")
    assert "reflect padding of 4 and 1 around 4 elements" in context.remarks[0]
