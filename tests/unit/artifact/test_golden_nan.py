"""Golden values that are NaN prove little: the command and the API say so when they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lowerkit

_FACTORY = """
import torch

class Roots(torch.nn.Module):
    def forward(self, x):
        return x.sqrt(), x + 1

def model():
    return Roots().eval(), (torch.tensor([-1.0, -4.0, 9.0]),)
"""


class Roots(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sqrt(), x + 1


def test_saving_counts_them_by_output(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compiled = lowerkit.compile(Roots().eval(), (torch.tensor([-1.0, -4.0, 9.0]),))
    compiled.save(tmp_path / "roots.lk")
    (said,) = [record.message for record in caplog.records if record.name == "lowerkit"]
    assert said.startswith("2 of 3 golden values of the output ") and said in compiled.remarks
    assert "give example inputs whose outputs are numbers" in said


def test_nothing_is_said_of_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lowerkit.compile(Roots().eval(), (torch.tensor([1.0, 4.0, 9.0]),)).save(tmp_path / "roots.lk")
    assert "golden" not in caplog.text


def test_the_command_prints_a_warning(tmp_path: Path) -> None:
    (tmp_path / "roots.py").write_text(_FACTORY)
    words = [sys.executable, "-m", "lowerkit", "compile", "roots.py:model", "-o", "roots.lk"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("warning: 2 of 3 golden values of the output "), done.stderr
