"""`lowerkit check --bisect`: what it prints, writes and returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.planted_bugs import PLANTED_BUGS
from tests.unit.cli.conftest import RunCommand

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 40)

    def forward(self, x):
        return torch.relu(self.linear(x))


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(6, 24),)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:make"


def test_a_bug_is_named_and_its_reproducer_written(
    model: str, tmp_path: Path, lowerkit_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED_BUGS["dropped-bias"].plant(monkeypatch)
    folder, page = tmp_path / "shown", tmp_path / "report.html"
    outcome = lowerkit_command("check", model, "--bisect", "--reproducer", folder, "--html", page)
    assert outcome.code == 6
    assert outcome.err.count("error[LK6001]") == 1
    assert "arith.addf of linear@linear" in outcome.err and "model.py:11" in outcome.err
    assert {entry.name for entry in folder.iterdir()} == {
        "inputs.npz",
        "region.mlir",
        "region.mlir.weights",
        "reproduce.py",
    }
    assert "First op that differs" in page.read_text()
    assert "compiled" in outcome.out
    # In a process without the planted bug, the reproducer says that it is gone.
    script = [sys.executable, str(folder / "reproduce.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(script, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "the bug is gone" in done.stdout and "lk.matmul" in done.stdout


def test_json_holds_the_waterfall(model: str, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("check", model, "--bisect", "--reproducer", tmp_path / "none", "--json")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert document["bisection"]["finding"] is None
    assert [row["stage"] for row in document["bisection"]["stages"]][-2:] == ["fused", "compiled"]
    assert not (tmp_path / "none").exists()


def test_a_bug_below_the_gate_is_a_failure_too(
    tmp_path: Path, lowerkit_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MODEL.replace("nn.Linear(24, 40)", "nn.LayerNorm(24)").replace("self.linear(x))", "self.linear(x)) * 0.01")
    (tmp_path / "model.py").write_text(text)
    PLANTED_BUGS["wrong-epsilon"].plant(monkeypatch)
    model = f"{tmp_path / 'model.py'}:make"
    assert lowerkit_command("check", model).code == 0
    outcome = lowerkit_command("check", model, "--bisect", "--reproducer", tmp_path / "shown")
    assert outcome.code == 6
    assert outcome.err.count("error[LK6001]: gate A holds on these inputs, but") == 1
    assert "pass raise-normalization" in outcome.err and "an epsilon" in outcome.err


def test_where_nothing_can_be_written(model: str, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("check", model, "--html", tmp_path / "no/report.html")
    assert outcome.code == 3 and outcome.err.count("error[LK1005]") == 1
