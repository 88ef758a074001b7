"""raise-pads: numbers become tensor.pad, elements look-ups by positions; impossible amounts stay."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, function, with_values

PAD = function(
    "%x: SOURCE",
    "RESULT",
    """
  %i4 = torch.constant.int 4
  %amount = torch.prim.ListConstruct LOW, %i1 : (!torch.int, !torch.int) -> !torch.list<int>
  %mode = torch.constant.str "MODE"
  %r = torch.aten.pad %x, %amount, %mode, %none : SOURCE, !torch.list<int>, !torch.str, !torch.none -> RESULT
  return %r : RESULT""",
)
SOURCE, RESULT = "!torch.vtensor<[2,4],f32>", "!torch.vtensor<[2,7],f32>"


@pytest.mark.parametrize(
    ("mode", "positions"),
    [("reflect", "2, 1, 0, 1, 2, 3, 2"), ("replicate", "0, 0, 0, 1, 2, 3, 3"), ("circular", "2, 3, 0, 1, 2, 3, 0")],
)
def test_padding_by_elements(check: Check, mode: str, positions: str) -> None:
    check(
        with_values(PAD, {"LOW": "%i2", "MODE": mode, "RESULT": RESULT, "SOURCE": SOURCE}),
        "raise-pads",
        f"""
        // CHECK: %[[P:.*]] = arith.constant dense<[{positions}]> : tensor<7xi64>
        // CHECK: "lk.gather"(%{{{{.*}}}}, %[[P]]) {{axis = 1 : i64}}
        """,
    )


def test_padding_by_a_number(check: Check) -> None:
    text = with_values(PAD, {"LOW": "%i2", "MODE": "constant", "RESULT": RESULT, "SOURCE": SOURCE})
    check(text, "raise-pads", "// CHECK: tensor.pad %{{.*}} low[0, 2] high[0, 1]")


def test_an_amount_below_zero_cuts_off(check: Check) -> None:
    values = {"LOW": "%m1", "MODE": "constant", "RESULT": "!torch.vtensor<[2,?],f32>"}
    text = with_values(PAD, {**values, "SOURCE": "!torch.vtensor<[2,?],f32>"})
    check(
        text,
        "raise-pads",
        """
        // CHECK: %[[CUT:.*]] = tensor.extract_slice %{{.*}}[0, 1] [2, %{{.*}}]
        // CHECK: tensor.pad %[[CUT]] low[0, 0] high[0, 1]
        """,
    )


def test_reflection_beyond_the_tensor_stays_and_says_so(check: Check) -> None:
    values = {"LOW": "%i4", "MODE": "reflect", "RESULT": "!torch.vtensor<[2,9],f32>", "SOURCE": SOURCE}
    context = check(with_values(PAD, values), "raise-pads", "// CHECK: torch.aten.pad")
    assert "reflect padding of 4 and 1 around 4 elements" in context.remarks[0]
