"""recognize-gelu: the three formulas in several groupings; constants and operands that are nearly right stay."""

from __future__ import annotations

import pytest

from tests.support.torch_text import Check, assert_same_meaning, function, normal, with_values

EXACT = function(
    "%x: @[4,7]",
    "@[4,7]",
    """
  %root = torch.constant.float ROOT
  %half = torch.constant.float 0.5
  %one = torch.constant.float ONE
  %d = torch.aten.div.Scalar %x, %root : @[4,7], !torch.float -> @[4,7]
  %e = torch.aten.erf %d : @[4,7] -> @[4,7]
  %s = torch.aten.add.Scalar %e, %one, %i1 : @[4,7], !torch.float, !torch.int -> @[4,7]
  %p = torch.aten.mul.Tensor %x, %s : @[4,7], @[4,7] -> @[4,7]
  %r = torch.aten.mul.Scalar %p, %half : @[4,7], !torch.float -> @[4,7]
  return %r : @[4,7]""",
)
RIGHT = {"ROOT": "1.4142135623730951", "ONE": "1.0"}

TANH = function(
    "%x: @[4,7]",
    "@[4,7]",
    """
  %half = torch.vtensor.literal(dense<5.0e-01> : tensor<f32>) : @[]
  %one = torch.vtensor.literal(dense<1.0> : tensor<f32>) : @[]
  %k = torch.vtensor.literal(dense<0.797884583> : tensor<f32>) : @[]
  %c = torch.vtensor.literal(dense<CUBIC> : tensor<f32>) : @[]
  %three = torch.vtensor.literal(dense<EXPONENT> : tensor<f32>) : @[]
  %cube = torch.aten.pow.Tensor_Tensor %x, %three : @[4,7], @[] -> @[4,7]
  %t = torch.aten.mul.Tensor %c, %cube : @[], @[4,7] -> @[4,7]
  %a = torch.aten.add.Tensor %x, %t, %i1 : @[4,7], @[4,7], !torch.int -> @[4,7]
  %b = torch.aten.mul.Tensor %k, %a : @[], @[4,7] -> @[4,7]
  %h = torch.aten.tanh %b : @[4,7] -> @[4,7]
  %s = torch.aten.add.Tensor %one, %h, %i1 : @[], @[4,7], !torch.int -> @[4,7]
  %q = torch.aten.mul.Tensor %half, %s : @[], @[4,7] -> @[4,7]
  %r = torch.aten.mul.Tensor %x, %q : @[4,7], @[4,7] -> @[4,7]
  return %r : @[4,7]""",
)
CUBIC = {"CUBIC": "0.044715", "EXPONENT": "3.0"}

FAST_TANH = function(
    "%x: @[4,7]",
    "@[4,7]",
    """
  %half = torch.constant.float 0.5
  %k = torch.constant.float 0.79788456080286541
  %c = torch.constant.float 4.4715e-02
  %h = torch.aten.mul.Scalar %x, %half : @[4,7], !torch.float -> @[4,7]
  %kx = torch.aten.mul.Scalar %x, %k : @[4,7], !torch.float -> @[4,7]
  %cx = torch.aten.mul.Scalar %x, %c : @[4,7], !torch.float -> @[4,7]
  %cxx = torch.aten.mul.Tensor %cx, %x : @[4,7], @[4,7] -> @[4,7]
  %n = torch.aten.add.Scalar %cxx, %i1, %i1 : @[4,7], !torch.int, !torch.int -> @[4,7]
  %arg = torch.aten.mul.Tensor %kx, %n : @[4,7], @[4,7] -> @[4,7]
  %t = torch.aten.tanh %arg : @[4,7] -> @[4,7]
  %s = torch.aten.add.Scalar %t, %i1, %i1 : @[4,7], !torch.int, !torch.int -> @[4,7]
  %r = torch.aten.mul.Tensor %h, %s : @[4,7], @[4,7] -> @[4,7]
  return %r : @[4,7]""",
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [(with_values(EXACT, RIGHT), "none"), (with_values(TANH, CUBIC), "tanh"), (FAST_TANH, "tanh")],
    ids=["exact", "tanh", "fast-tanh"],
)
def test_formula_becomes_gelu(check: Check, text: str, kind: str) -> None:
    check(
        text,
        "recognize-gelu",
        f"""
        // CHECK: func.func @main(%[[X:.*]]: !torch.vtensor<[4,7],f32>)
        // CHECK-NOT: torch.aten.{{{{erf|tanh|pow}}}}
        // CHECK: %[[KIND:.*]] = torch.constant.str "{kind}"
        // CHECK: %[[R:.*]] = torch.aten.gelu %[[X]], %[[KIND]]
        // CHECK: return %[[R]]
        """,
    )
    assert_same_meaning(text, "recognize-gelu", [normal(4, 7)])


@pytest.mark.parametrize(
    "text",
    [
        with_values(EXACT, {**RIGHT, "ROOT": "1.4142"}),
        with_values(EXACT, {**RIGHT, "ONE": "1.001"}),
        with_values(EXACT, RIGHT).replace("torch.aten.mul.Tensor %x, %s", "torch.aten.mul.Tensor %d, %s"),
        with_values(TANH, {**CUBIC, "CUBIC": "0.0447"}),
        with_values(TANH, {**CUBIC, "EXPONENT": "2.0"}),
        with_values(TANH, CUBIC).replace("torch.aten.tanh", "torch.aten.sigmoid"),
    ],
    ids=["root", "one", "other-operand", "cubic", "exponent", "sigmoid"],
)
def test_near_miss_stays(check: Check, text: str) -> None:
    check(text, "recognize-gelu", "// CHECK: func.func\n// CHECK-NOT: torch.aten.gelu\n// CHECK: return")
