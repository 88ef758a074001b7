"""``check`` inside of branches and loops: each op by itself; a planted bug is named with its turn and line."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from onnx import parser

import lowerkit
from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.mlir import ir
from lowerkit.parity.check import check_program
from lowerkit.parity.report.report import Row
from lowerkit.passes.raising.core.raise_pointwise import RaisePointwise
from lowerkit.passes.raising.torch_dialect.torch_build import unary


class Loop(torch.nn.Module):
    """Counts x down by 30 from 60, so that softplus is far from relu in the third turn only."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def more(turn: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return turn < 4

        def body(turn: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.nn.functional.softplus(x)
            return turn + 1, y - 30 + self.linear(y) * 0

        _, x = torch.while_loop(more, body, (torch.tensor(0), x))
        return x * 2


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def positive(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.softplus(x).cumsum(0)

        return torch.cond(x.sum() > 0, positive, lambda x: x.clone(), (x,)) + 1


def plant(patch: pytest.MonkeyPatch, op: str = "torch.aten.softplus") -> None:
    relu: Any = RaisePointwise.rules["torch.aten.relu"]

    def wrong(planted: ir.Operation, context: Any) -> Sequence[ir.Value]:
        return relu(unary("relu", planted.operands[0]).owner, context)

    patch.setitem(RaisePointwise.rules, op, wrong)  # type: ignore[arg-type]


def line_of(row: Row) -> str:
    file, _, line = row.location.rpartition(":")
    return linecache.getline(file, int(line))


def test_ops_of_a_loop_hold() -> None:
    report = lowerkit.check(Loop().eval(), (60 + torch.randn(3, 8),))
    assert report.passed
    inside = [row for row in report.ops if "(in while_loop.body, turn 0)" in row.name]
    assert inside
    assert all("test_subgraphs.py" in row.location for row in inside)


def test_a_bug_in_a_loop_is_named_with_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    report = lowerkit.check(Loop().eval(), (60 + torch.randn(3, 8),))
    assert not report.passed
    found = report.first_failure
    assert found is not None
    assert "(in while_loop.body, turn 2)" in found.name
    assert "softplus" in line_of(found)


def test_a_bug_in_a_branch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    report = lowerkit.check(Branch().eval(), (torch.randn(3, 8).abs(),))
    found = report.first_failure
    assert found is not None
    assert found.name.endswith("(in cond.then)")
    assert "softplus" in line_of(found)
    assert "the body cond.else: these inputs do not reach it" in report.skipped


def test_a_bug_in_a_branch_of_onnx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "torch.aten.elu")
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (bool c, float[3] x) => (float[3] y) {
          y = If (c) <then_branch = t () => (float[3] a) { s = Elu (x)  a = Neg (s) },
                      else_branch = e () => (float[3] b) { b = Neg (x) }>
        }""")
    inputs = [np.array(True), np.array([-1.0, 0.5, 2.0], np.float32)]
    report = check_program(capture_onnx(model, example_inputs=inputs))
    found = report.first_failure
    assert found is not None
    assert found.name.endswith("(in y.If.then)")
    assert found.name.startswith("main.y.If.then/a")
