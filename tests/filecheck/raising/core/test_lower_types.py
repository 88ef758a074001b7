"""lower-types: signatures and casts change, nothing else; every op that no rule took is named at once."""

from __future__ import annotations

import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.errors import UnsupportedError
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.lower_types import LowerTypes
from lowerkit.passes.raising.core.raise_slices import RaiseSlices
from lowerkit.program.weights import WeightStore
from tests.support.torch_text import Check, function, types

LOCATED = types("""
func.func @main(%x: @[2,3]) -> (@[2,3], @[2,3], @[2,3]) {
  %a = torch.aten.tanh %x : @[2,3] -> @[2,3] loc("tanh@body.0"("/home/user/model.py":7:0))
  %b = torch.aten.erfinv %a : @[2,3] -> @[2,3] loc("erfinv@body.1"("/home/user/model.py":8:0))
  %c = torch.operator "torch.aten.unknown"(%b) : (@[2,3]) -> @[2,3] loc("unknown@body.1"("/home/user/model.py":9:0))
  %d = torch.aten.erfinv %c : @[2,3] -> @[2,3] loc("erfinv_1@body.1"("/home/user/model.py":10:0))
  return %a, %b, %d : @[2,3], @[2,3], @[2,3]
}
""")


def test_casts_between_two_worlds_go(check: Check) -> None:
    text = function(
        "%x: @[?,3:ui8], %n: !torch.int",
        "@[3,3:ui8]",
        """
  %b = torch_c.to_builtin_tensor %x : @[?,3:ui8] -> tensor<?x3xi8>
  %s = tensor.cast %b : tensor<?x3xi8> to tensor<3x3xi8>
  %r = torch_c.from_builtin_tensor %s : tensor<3x3xi8> -> @[3,3:ui8]
  return %r : @[3,3:ui8]""",
    )
    check(
        text,
        "lower-types",
        """
        // CHECK: func.func @main(%[[X:.*]]: tensor<?x3xi8>, %{{.*}}: i64) -> tensor<3x3xi8>
        // CHECK-NEXT: %[[R:.*]] = tensor.cast %[[X]] : tensor<?x3xi8> to tensor<3x3xi8>
        // CHECK-NEXT: return %[[R]]
        """,
    )


def test_function_without_ops_gets_builtin_types(check: Check) -> None:
    check(
        types("func.func @main(%x: @[2,3]) -> @[2,3] {\n  return %x : @[2,3]\n}"),
        "lower-types",
        "// CHECK: func.func @main(%{{.*}}: tensor<2x3xf32>) -> tensor<2x3xf32>",
    )


def test_every_op_that_no_rule_took_is_named() -> None:
    module = parse_module(LOCATED, new_context())
    with pytest.raises(UnsupportedError) as caught:
        LowerTypes().run(module, PassContext(weights=WeightStore()))
    assert caught.value.code == "LK4001"
    assert caught.value.details == (
        "aten.erfinv (f32 2x3) at /home/user/model.py:10 (in body.1)",
        "aten.erfinv (f32 2x3) at /home/user/model.py:8 (in body.1)",
        "aten.tanh (f32 2x3) at /home/user/model.py:7 (in body.0)",
        "aten.unknown (f32 2x3) at /home/user/model.py:9 (in body.1)",
    )
    assert "3 ops" in caught.value.message


def test_the_reason_of_a_rule_is_said() -> None:
    text = function(
        "%x: @[5,2]",
        "@[5,2]",
        """
  %r = torch.aten.slice.Tensor %x, %i0, %i0, %i3, %m1 : @[5,2], !torch.int, !torch.int, !torch.int, !torch.int -> @[5,2]
  return %r : @[5,2]""",
    )
    module, context = parse_module(text, new_context()), PassContext(weights=WeightStore())
    RaiseSlices().run(module, context)
    with pytest.raises(UnsupportedError) as caught:
        LowerTypes().run(module, context)
    assert caught.value.details[0].endswith(": a step of -1")


def test_what_nobody_reads_is_no_reason_to_refuse(check: Check) -> None:
    text = function("%x: @[2]", "@[2]", "\n  %r = torch.aten.erfinv %x : @[2] -> @[2]\n  return %x : @[2]")
    check(text, "lower-types", "// CHECK: func.func @main(%{{.*}}: tensor<2xf32>)\n// CHECK-NEXT: return")
