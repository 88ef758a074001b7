"""`lowerkit quantize`: the artifact, the report, and what happens when gate B fails or the data is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.support.suite.randomness import RANDOM
from tests.support.targets.accelerators import installed
from tests.support.targets.interpreted import InterpretedDevice, target_that
from tests.unit.cli.conftest import RunCommand
from tests.unit.quantization.test_mixed_precision import planted_samples
from tests.unit.quantization.test_quantize import calibration

PLANTED = f"{Path(__file__).parents[1] / 'quantization' / 'test_mixed_precision.py'}:planted"
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
    samples = RANDOM.standard_normal((6, 2, 4, 7, 6)).astype(np.float32)
    np.savez(tmp_path / "data.npz", input=samples)
    factory = f"{tmp_path / 'grouped.py'}:model"
    arguments = ["quantize", factory, "--calib", tmp_path / "data.npz", "-o", tmp_path / "model.q.lk"]
    with installed({"npu": target_that("npu", lambda op: op.name == "lk.conv")}, {"npu": InterpretedDevice}):
        done = lowerkit_command(*arguments, "--target", "npu")
    assert "left in floats: lk.conv" in done.err
    assert "2 channels a group" in done.err
    assert "npu: 1 of " in done.err  # the summary line of the target


def test_the_command_fails_when_gate_b_does(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    np.savez(tmp_path / "data.npz", x=calibration() * 0.01)  # ranges a hundred times too small
    artifact = tmp_path / "model.q.lk"
    done = lowerkit_command(
        "quantize", FACTORY, "--calib", tmp_path / "data.npz", "-o", artifact, "--keep-float", "none"
    )
    assert done.code == 6
    assert "LK6002" in done.err
    assert artifact.exists()
    assert "--keep-float auto" in done.err


def test_the_command_keeps_products_in_floats_and_says_so(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    np.savez(tmp_path / "data.npz", x=planted_samples())
    arguments = ["quantize", PLANTED, "--calib", tmp_path / "data.npz", "-o", tmp_path / "model.q.lk"]
    done = lowerkit_command(*arguments)
    assert done.code == 0, done.err
    assert "kept in floats: linear_1 (layers.1) at " in done.err
    assert "35.1% of the FLOPs, alone in int8 " in done.err
    assert "without products kept for gate B: SQNR " in done.out
    assert "kept in floats: 1 of 4 products, 35.1% of their FLOPs, 35.1% of their weights" in done.out
    asked = lowerkit_command(*arguments, "--keep-float", "layers.1", "--json")
    assert asked.code == 0, asked.err
    document = json.loads(asked.out)
    assert [(row["module_path"], row["asked"]) for row in document["kept"]] == [("layers.1", True)]
    assert document["without_choice"] == []
    unknown = lowerkit_command(*arguments, "--keep-float", "layer.9")
    assert unknown.code == 2
    assert "pattern 'layer.9'" in unknown.err
