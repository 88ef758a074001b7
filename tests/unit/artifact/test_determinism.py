"""Same input, same bytes: other folder, other hash seed, other number of threads and workers, no cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(16)
        self.last = torch.nn.Linear(16, 5)
    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        return torch.softmax(self.last(y.mean((2, 3))), -1)
def make():
    torch.manual_seed(3)
    return Model().eval(), (torch.randn(1, 3, 9, 9),)
"""
COMMAND = "from lowerkit.cli.main import main; main()"


def compile_in(folder: Path, seed: str, threads: str, workers: str) -> str:
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads}
    arguments = ["compile", "model.py:make", "-o", "m.lk", "--workers", workers, "--no-cache"]
    command = [sys.executable, "-c", COMMAND, *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    data = (folder / "m.lk").read_bytes()
    assert str(folder).encode() not in data, "the artifact names a folder of this machine"
    return hashlib.sha256(data).hexdigest()


def test_two_compilations_give_the_same_bytes(tmp_path: Path) -> None:
    first = compile_in(tmp_path / "one", "1", "1", "1")
    second = compile_in(tmp_path / "another" / "place", "77", "2", "2")
    assert first == second
