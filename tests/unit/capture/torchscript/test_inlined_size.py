from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.load_model import capture_path
from lowerkit.errors import CaptureError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Twice(nn.Module):
    """Modules that call each other twice."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner: nn.Module = Twice(depth - 1) if depth else nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x))


def functions(folder: Path, depth: int) -> Any:
    """A script of functions that call each other twice."""
    lines = ["import torch", "@torch.jit.script", "def f0(x: torch.Tensor) -> torch.Tensor:", "    return x + 1"]
    for number in range(1, depth + 1):
        lines += ["@torch.jit.script", f"def f{number}(x: torch.Tensor) -> torch.Tensor:"]
        lines += [f"    return f{number - 1}(x) * f{number - 1}(x)"]
    lines += ["class Calls(torch.nn.Module):", "    def forward(self, x: torch.Tensor) -> torch.Tensor:"]
    lines += [f"        return f{depth}(x)"]
    path = folder / f"calls_{depth}.py"
    path.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return torch.jit.script(module.Calls())


@pytest.mark.parametrize("kind", ["functions", "modules"])
def test_calls_that_multiply_are_refused_before_they_are_written_out(tmp_path: Path, kind: str) -> None:
    script: Any = functions(tmp_path, 40) if kind == "functions" else torch.jit.script(Twice(40))
    path = tmp_path / "model.pt"
    script.save(str(path))
    for refused in (
        lambda: lowerkit.compile(script, (torch.ones(2),)),
        lambda: capture_path(str(path), example_inputs=(torch.ones(2),)),
    ):
        with pytest.raises(CaptureError, match="250000 are read") as caught:
            refused()
        assert caught.value.code == "LK2003"


def test_calls_below_the_bound_are_taken(tmp_path: Path) -> None:
    script = functions(tmp_path, 3)
    path = tmp_path / "model.pt"
    script.save(str(path))
    x = torch.tensor([0.1, -0.2])
    compiled = lowerkit.compile(str(path), (x,))
    np.testing.assert_allclose(np.asarray(compiled(x)), ((x + 1) ** 8).numpy(), rtol=1e-6)
