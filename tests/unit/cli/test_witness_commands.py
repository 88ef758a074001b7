"""`compile --witness`, what `inspect` says of it, and `check --ops`."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import torch

from lowerkit.parity.witness.verdicts import Difference, Witnessed
from tests.unit.cli.conftest import RunCommand


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(24, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.inner(x), -1).cumsum(0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.export.save(torch.export.export(Small().eval(), (torch.randn(3, 24),)), tmp_path / "small.pt2")
    return tmp_path / "small.pt2"


def test_the_file_says_what_was_witnessed(model: Path, lowerkit_command: RunCommand) -> None:
    file = model.with_suffix(".lk")
    made = lowerkit_command("compile", model, "--witness", "-o", file)
    assert made.code == 0, made.err
    witness = json.loads(lowerkit_command("inspect", file, "--json").out)["witness"]
    assert (witness["ops"], witness["witnessed_ops"]) == (3, 3)
    assert witness["kernels"] == witness["witnessed_kernels"] >= 2
    assert "witnessed: 3 of 3 ops, " in lowerkit_command("inspect", file).out
    assert "witnessed: 3 of 3 ops, " in made.err


def test_the_ops_of_a_model_as_a_report(model: Path, lowerkit_command: RunCommand) -> None:
    table = lowerkit_command("check", model, "--ops")
    assert table.code == 0 and "3 of 3 distinct ops were compared with eager" in table.out
    found = json.loads(lowerkit_command("check", model, "--ops", "--json").out)["witness"]
    assert [each["verdict"] for each in found] == ["same"] * 3


def test_nothing_is_written_where_something_differs(
    model: Path, lowerkit_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Witnessed("aten.relu.default", "f32[3]", "differs", {}, [Difference("drawn values", "1.0 for 2.0")])]
    monkeypatch.setattr("lowerkit.parity.witness.record.witness_ops", lambda *_: found)
    made = lowerkit_command("compile", model, "-o", model.with_suffix(".lk"), "--witness")
    assert made.code == 6 and "LK6005" in made.err and "1.0 for 2.0" in made.err
    assert not model.with_suffix(".lk").exists()


def test_the_ops_of_an_onnx_model_are_witnessed(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    graph = """<ir_version: 10, opset_import: ["" : 21]> g (float[2, 3] x) => (float[2, 3] y) { y = Exp (x) }"""
    onnx.save(onnx.parser.parse_model(graph), tmp_path / "exp.onnx")
    made = lowerkit_command("compile", tmp_path / "exp.onnx", "--witness", "-o", tmp_path / "exp.lk")
    assert made.code == 0, made.err
    assert "witnessed: 1 of 1 ops, 1 of 1 kernels" in made.err and "not compared" not in made.err
    report = lowerkit_command("check", tmp_path / "exp.onnx", "--ops")
    assert report.code == 0 and "1 of 1 distinct ops were compared with ONNX Runtime" in report.out
