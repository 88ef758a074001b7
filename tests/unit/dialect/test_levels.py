"""The legal sets of the levels: what may stand in the IR where a stage ends."""

from __future__ import annotations

from typing import ClassVar

import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.levels import illegal_ops
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.pipeline import run_stages
from lowerkit.program.program import Program
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import Signature

T = "tensor<2x4xf32>"
SOFTMAX = f'%a = "lk.softmax"(%x) {{axis = 1 : i64, log = false}} : ({T}) -> {T}'


def text(body: str, arguments: str = f"%x: {T}") -> str:
    return f"func.func @main({arguments}) -> {T} {{\n{body}\nreturn %a : {T}\n}}"


def illegal(source: str, stage: str) -> list[str]:
    module = parse_module(source, new_context())
    return [op.name for op in illegal_ops(module.body.operations[0].operation, stage)]


@pytest.mark.parametrize("stage", ["raised", "canonical", "partitioned", "layout"])
def test_ops_of_the_graph_level_stand_outside_of_regions_until_they_are_fused(stage: str) -> None:
    assert illegal(text(SOFTMAX), stage) == []
    assert illegal(text(SOFTMAX), "fused") == ["lk.softmax"]


def test_torch_ops_are_captured_only() -> None:
    source = (
        "func.func @main(%x: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {\n"
        "%a = torch.aten.relu %x : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>\n"
        "return %a : !torch.vtensor<[2],f32>\n}"
    )
    assert illegal(source, "captured") == []
    assert illegal(source, "raised") == ["torch.aten.relu"]


def test_calls_of_targets_come_with_the_partition() -> None:
    segments = f"array<i32: 1, {', '.join(['0'] * 31)}>", f"array<i32: 1, {', '.join(['0'] * 7)}>"
    call = (
        f'%a = "lk.call"(%x) {{callee = "f", operandSegmentSizes = {segments[0]}, resultSegmentSizes = {segments[1]}}}'
        f" : ({T}) -> {T}"
    )
    assert illegal(text(call), "canonical") == ["lk.call"]
    assert illegal(text(call), "partitioned") == illegal(text(call), "fused") == []


class LeavesSoftmax(Pass):
    """Does nothing, where everything should have become a region."""

    name: ClassVar[str] = "leaves-softmax"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        return False


def test_what_a_stage_leaves_behind_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    context = new_context()
    source = text(SOFTMAX + ' loc("model.py":7:3)')
    program = Program(context, parse_module(source, context), WeightStore(), Signature(), "test", "layout")
    monkeypatch.setattr("lowerkit.pipeline.stage_passes", lambda _stage: [LeavesSoftmax()])
    with pytest.raises(VerifyError, match="LK3005") as caught:
        run_stages(program, "fused", PassContext(weights=WeightStore()))
    assert caught.value.details == ("lk.softmax at model.py:7",)
