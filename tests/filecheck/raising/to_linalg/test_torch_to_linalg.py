"""torch-to-linalg: clean IR, locations kept, look-ups guarded, and every op that cannot be lowered named at once."""

from __future__ import annotations

import re

import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir, walk
from lowerkit.passes import mlir_worker
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.to_linalg import conversion, torch_to_linalg
from lowerkit.passes.raising.to_linalg.torch_to_linalg import TorchToLinalg
from lowerkit.program.locations import origin_of
from lowerkit.program.weights import WeightStore
from tests.support.torch_text import Check, function, types


def test_scalar_is_rounded_to_the_type_of_the_tensor(check: Check) -> None:
    text = function(
        "%x: @[2,3]",
        "@[2,3:i1], @[2,3]",
        """
  %c = torch.constant.float 0.1
  %r = torch.aten.gt.Scalar %x, %c : @[2,3], !torch.float -> @[2,3:i1]
  %s = torch.aten.mul.Scalar %x, %c : @[2,3], !torch.float -> @[2,3]
  return %r, %s : @[2,3:i1], @[2,3]""",
    )
    check(
        text,
        "torch-to-linalg",
        """
        // CHECK-NOT: f64
        // CHECK: %[[C:.*]] = arith.constant 1.000000e-01 : f32
        // CHECK: arith.cmpf ogt, %{{.*}}, %[[C]] : f32
        // CHECK: arith.mulf %{{.*}}, %[[C]] : f32
        """,
    )


def test_float64_of_the_model_stays(check: Check) -> None:
    text = function(
        "%x: @[2:f64]", "@[2:f64]", "\n  %r = torch.aten.exp %x : @[2:f64] -> @[2:f64]\n  return %r : @[2:f64]"
    )
    check(text, "torch-to-linalg", "// CHECK: math.exp %{{.*}} : f64")


def test_reciprocal_does_not_assert(check: Check) -> None:
    text = function("%x: @[2]", "@[2]", "\n  %r = torch.aten.reciprocal %x : @[2] -> @[2]\n  return %r : @[2]")
    check(text, "torch-to-linalg", "// CHECK-NOT: cf.assert\n// CHECK: arith.divf")


def test_position_out_of_data_is_clamped(check: Check) -> None:
    text = function(
        "%x: @[4,5], %i: @[4,2:si64]",
        "@[4,2]",
        """
  %r = torch.aten.gather %x, %i1, %i, %false : @[4,5], !torch.int, @[4,2:si64], !torch.bool -> @[4,2]
  return %r : @[4,2]""",
    )
    check(
        text,
        "torch-to-linalg",
        """
        // CHECK: %[[LAST:.*]] = arith.constant 4 : index
        // CHECK: %[[LOW:.*]] = arith.maxsi
        // CHECK: %[[IN:.*]] = arith.minsi %[[LOW]], %[[LAST]]
        // CHECK: tensor.extract %{{.*}}[%{{.*}}, %[[IN]]]
        """,
    )


def test_function_without_ops_gets_builtin_types(check: Check) -> None:
    check(
        types("func.func @main(%x: @[2,3]) -> @[2,3] {\n  return %x : @[2,3]\n}"),
        "torch-to-linalg",
        "// CHECK: func.func @main(%{{.*}}: tensor<2x3xf32>) -> tensor<2x3xf32>",
    )


LOCATED = types("""
func.func @main(%x: @[2,3]) -> (@[2,3], @[2,3], @[2,3]) {
  %p = torch.constant.float 0.5
  %a = torch.aten.exp %x : @[2,3] -> @[2,3] loc("exp@body.0"("/home/user/model.py":7:0))
  %b = torch.aten.erfinv %a : @[2,3] -> @[2,3] loc("erfinv@body.1"("/home/user/model.py":8:0))
  %c = torch.operator "torch.aten.unknown"(%b) : (@[2,3]) -> @[2,3] loc("unknown@body.1"("/home/user/model.py":9:0))
  %d = torch.aten.erfinv %c : @[2,3] -> @[2,3] loc("erfinv_1@body.1"("/home/user/model.py":10:0))
  return %a, %b, %d : @[2,3], @[2,3], @[2,3]
}
""")


def test_every_op_that_cannot_be_lowered_is_named() -> None:
    module = parse_module(LOCATED, new_context())
    with pytest.raises(UnsupportedError) as caught:
        TorchToLinalg().run(module, PassContext(weights=WeightStore()))
    assert caught.value.code == "LK4001"
    assert caught.value.details == (
        "aten.erfinv (f32 2x3) at /home/user/model.py:10 (in body.1)",
        "aten.erfinv (f32 2x3) at /home/user/model.py:8 (in body.1)",
        "aten.unknown (f32 2x3) at /home/user/model.py:9 (in body.1)",
    )
    assert "2 ops" in caught.value.message


def test_locations_survive() -> None:
    text = LOCATED.replace("torch.aten.erfinv", "torch.aten.tanh")
    text = re.sub(r'torch.operator "torch.aten.unknown"\(%b\) : \((.*?)\)', r"torch.aten.sin %b : \1", text)
    module = parse_module(text, new_context())
    TorchToLinalg().run(module, PassContext(weights=WeightStore()))
    lines: list[str | None] = []

    def collect(op: ir.Operation) -> None:
        if op.name == "linalg.generic":
            lines.append(origin_of(op.location).source_line)

    walk(module.operation, collect)
    assert lines == [f"/home/user/model.py:{line}" for line in (7, 8, 9, 10)]


def test_ops_whose_conversion_is_wrong_are_refused() -> None:
    text = function(
        "%x: @[5,7], %y: @[7]",
        "@[5,7]",
        """
  %r = torch.aten.fmin %x, %y : @[5,7], @[7] -> @[5,7]
  return %r : @[5,7]""",
    )
    with pytest.raises(UnsupportedError) as caught:
        TorchToLinalg().run(parse_module(text, new_context()), PassContext(weights=WeightStore()))
    assert caught.value.code == "LK4001"
    assert [detail.split(" (")[0] for detail in caught.value.details] == ["aten.fmin"]


ENDLESS = """
  %c = torch.constant.int 1
  %s = torch.aten.asinh %x : @[5,2,3] -> @[5,2,3]
  %r = torch.aten.conv_tbc %s, %w, %b, %c : @[5,2,3], @[3,3,4], @[4], !torch.int -> @[5,2,4]
  return %r : @[5,2,4]"""


def test_an_op_whose_conversion_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlir_worker, "MODULE_SECONDS", 2.5)
    monkeypatch.setattr(torch_to_linalg, "OP_SECONDS", 2.0)
    module = parse_module(function("%x: @[5,2,3], %w: @[3,3,4], %b: @[4]", "@[5,2,4]", ENDLESS), new_context())
    with pytest.raises(UnsupportedError) as caught:
        TorchToLinalg().run(module, PassContext(weights=WeightStore()))
    assert caught.value.code == "LK4001"
    (detail,) = caught.value.details
    assert detail.startswith("aten.conv_tbc (")
    assert "does not end or crashes (more than 2 s of processor time were used)" in detail


def test_a_worker_converts_as_this_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, locations and all."""
    texts: list[str] = []
    for well_known in (False, True):
        monkeypatch.setattr(conversion, "_is_well_known", lambda _, answer=well_known: answer)
        text = LOCATED.replace("torch.aten.erfinv", "torch.aten.tanh")
        text = re.sub(r'torch.operator "torch.aten.unknown"\(%b\) : \((.*?)\)', r"torch.aten.sin %b : \1", text)
        module = parse_module(text, new_context())
        TorchToLinalg().run(module, PassContext(weights=WeightStore()))
        texts.append(module.operation.get_asm(enable_debug_info=True))
    assert texts[0] == texts[1]
