"""`lowerkit check --bisect` on a target with witnesses: the layer that is wrong is printed, and stands in the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.targets.planted_layers import PLANTED_LAYERS
from tests.unit.cli.conftest import RunCommand

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return (x - y) * 3.0


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 40), torch.randn(4, 40))
"""
OPTIONS = ("--target", "cuda:sm_90", "--device", "cuda-sim", "--bisect", "--reproducer")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:make"


def test_the_layer_is_printed(
    model: str, tmp_path: Path, lowerkit_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED_LAYERS["a wrong instruction in PTX"].plant(monkeypatch)
    outcome = lowerkit_command("check", model, *OPTIONS, tmp_path / "shown")
    assert outcome.code == 6
    assert "arith.subf of sub@ at " in outcome.err and "model.py:7" in outcome.err
    assert "what is wrong is Triton's lowering" in outcome.err
    assert "Triton's interpreter (family elementwise, elementwise_" in outcome.err
    assert (tmp_path / "shown" / "reproduce.py").is_file()


def test_a_run_that_ends_is_searched_too(
    model: str, tmp_path: Path, lowerkit_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED_LAYERS["a family that drops a mask"].plant(monkeypatch)
    outcome = lowerkit_command("check", model, *OPTIONS, tmp_path / "shown", "--json")
    assert outcome.code == 6
    document = json.loads(outcome.out)
    assert not document["passed"] and "operand 0 (640 bytes" in document["ended"]
    finding = document["bisection"]["finding"]
    assert (finding["layer"], finding["location"].rpartition("/")[2]) == ("the kernel", "model.py:7")
    assert [each["verdict"] for each in finding["witnesses"]] == ["offends", "offends"]
    assert "tl.load(p0" in finding["witnesses"][0]["note"] and "PTX line" in finding["witnesses"][1]["note"]
    assert "the run ended (the device 'cuda-sim'" in outcome.err
