"""Models on the meta device: sized as the real ones are, without a weight being allocated, and never compiled."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import lowerkit
from lowerkit.cli.main import cli
from lowerkit.errors import CaptureError

MODELS = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self, vocabulary=96, width=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("counts", torch.zeros(3))
    def forward(self, ids):
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        return self.head(self.block(self.embedding(ids), src_mask=~mask))

class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
                                    nn.Linear(8 * 7 * 7, 5))
    def forward(self, x):
        return self.layers(x)

def tied(): return Tied().eval(), (torch.zeros(2, 7, dtype=torch.int64),)
def conv(): return Conv().eval(), (torch.randn(2, 3, 16, 16),)
def half(): return Conv().eval().to(torch.bfloat16), (torch.randn(2, 3, 16, 16, dtype=torch.bfloat16),)
def huge(): return nn.Sequential(*[nn.Linear(65536, 65536) for _ in range(4)]).eval(), (torch.randn(1, 65536),)
def reads():
    model = nn.Linear(3, 3)
    if float(model.weight.sum()) > 0:
        return model, (torch.randn(1, 3),)
    return model, (torch.randn(2, 3),)
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


def inspect(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["inspect", "--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("factory", ["tied", "conv", "half"])
def test_sizes_are_those_of_the_real_model(models: Path, factory: str) -> None:
    meta, real = inspect("--meta", f"{models}:{factory}"), inspect(f"{models}:{factory}")
    for field in ("flops", "bytes", "weight_bytes", "arena_bytes", "steps", "kernels"):
        assert meta["totals"][field] == real["totals"][field], field
    assert meta["totals"]["code_bytes"] == 0
    for field in ("inputs", "outputs", "kinds", "families", "steps"):
        assert meta[field] == real[field], field


def test_inputs_and_dims_can_be_given(models: Path) -> None:
    document = inspect(
        "--meta", f"{models}:conv", "--input", "x:9x3x16x16:f32", "--dynamic", "x:0=2..64", "--dim", "x_0=5"
    )
    assert document["inputs"][0]["shape"] == ["x_0", 3, 16, 16]
    five, ten = (
        inspect("--meta", f"{models}:conv", "--dynamic", "x:0=2..64", "--dim", f"x_0={value}")["totals"]["flops"]
        for value in (5, 10)
    )
    assert ten == 2 * five == 2 * document["totals"]["flops"]


def test_weights_are_never_allocated(models: Path) -> None:
    """68 GB of weights, in a process that may have 8 GB of address space more than torch's libraries take."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))\n"
        "from lowerkit.cli.main import main; main()\n"
    )
    command = [sys.executable, "-c", code, "inspect", "--meta", f"{models}:huge", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["totals"]["weight_bytes"] == 4 * 4 * (65536 * 65536 + 65536)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4 << 20


def test_a_factory_that_reads_values_is_told_so(models: Path) -> None:
    with pytest.raises(CaptureError, match=r"LK2001.*reads raised") as caught:
        CliRunner().invoke(cli, ["inspect", "--meta", f"{models}:reads"], catch_exceptions=False)
    assert caught.value.location is not None
    assert "must not read" in (caught.value.hint or "")


def test_a_model_without_weights_is_not_compiled() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(3, 4)
        with pytest.raises(CaptureError, match=r"LK2001.*2 weights.*meta device"):
            lowerkit.compile(module, (torch.randn(2, 3),))
