"""`lowerkit quantize`: the artifact, the report, and what happens when gate B fails or the data is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.unit.cli.conftest import RunCommand
from tests.unit.quantization.test_quantize import calibration

FACTORY = f"{Path(__file__).parents[1] / 'quantization' / 'test_quantize.py'}:model"


def test_the_command(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    np.savez(tmp_path / "data.npz", x=calibration())
    factory, artifact = FACTORY, tmp_path / "model.q.lk"
    done = lowerkit_command("quantize", factory, "--calib", tmp_path / "data.npz", "-o", artifact, "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["schema"] == "lowerkit.quantize"
    assert document["passed"] is True
    assert document["bytes"] == artifact.stat().st_size
    assert document["refused"] == []
    assert lowerkit_command("verify", artifact).code == 0
    missing = lowerkit_command("quantize", factory, "--calib", tmp_path / "no.npz", "-o", artifact)
    assert missing.code == 3
    assert "LK1001" in missing.err


GROUPED = """
import torch
from torch import nn


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 1, groups=4)).eval(), (torch.randn(2, 4, 7, 6),)
"""


def test_the_command_says_what_stays_in_floats(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    (tmp_path / "grouped.py").write_text(GROUPED)
    samples = np.random.default_rng().standard_normal((6, 2, 4, 7, 6)).astype(np.float32)
    np.savez(tmp_path / "data.npz", input=samples)
    factory = f"{tmp_path / 'grouped.py'}:model"
    done = lowerkit_command("quantize", factory, "--calib", tmp_path / "data.npz", "-o", tmp_path / "model.q.lk")
    assert "left in floats: lk.conv" in done.err
    assert "2 channels a group" in done.err


def test_the_command_fails_when_gate_b_does(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    np.savez(tmp_path / "data.npz", x=calibration() * 0.01)  # ranges a hundred times too small
    artifact = tmp_path / "model.q.lk"
    done = lowerkit_command("quantize", FACTORY, "--calib", tmp_path / "data.npz", "-o", artifact)
    assert done.code == 6
    assert "LK6002" in done.err
    assert artifact.exists()
