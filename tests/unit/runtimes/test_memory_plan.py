"""The memory plan, held to what the steps and jumps of a program say of its values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.export import Dim as ExportDim

import lowerkit
from lowerkit.artifact.safetensors_blob import TensorSource
from lowerkit.artifact.writer import write_artifact
from lowerkit.compiler import Compiled
from lowerkit.errors import ArtifactError
from lowerkit.runtimes import binding
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.runtimes.memory_plan import plan_problems
from lowerkit.runtimes.verify import verify_artifact


class Layers(nn.Module):
    """A value that is read again at the end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(self.first(x), -1)
        return torch.softmax(self.second(y), -1) @ y.T


class Looped(nn.Module):
    """A value that is made before a loop and read in each turn."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)

        def body(turn: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return turn + 1, torch.softmax(torch.cumsum(x * y, -1), -1)

        return torch.while_loop(lambda turn, x: turn < 3, body, (torch.tensor(0), x))[1]


def compiled(module: nn.Module, *inputs: torch.Tensor, **how: Any) -> Compiled:
    return lowerkit.compile(module.eval(), inputs, **how)


def without_lives(model: Compiled, path: Path) -> ProgramSpec:
    """Writes the model without what its buffers state of their lives; returns its program."""
    parts = model.parts
    buffers = [replace(each, first_step=-1, last_step=-1) for each in parts.program.buffers]
    program = replace(parts.program, buffers=buffers, golden=None)
    weights = {name: TensorSource(each.dtype, each.shape, each.read) for name, each in parts.weights.items()}
    write_artifact(path, replace(parts.manifest, programs=[program]), parts.code, weights)
    return program


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
@pytest.mark.parametrize("module", [Layers, Looped])
def test_what_is_compiled_has_no_problems(module: type[nn.Module], target: str, tmp_path: Path) -> None:
    model = compiled(module(), torch.ones(16, 16), target=target, device="cuda-sim" if target != "cpu" else None)
    assert plan_problems(model.parts.program, {}) == []
    model.save(tmp_path / "model.lk")
    assert verify_artifact(tmp_path / "model.lk", device="cuda-sim" if target != "cpu" else None).passed


def test_open_extents() -> None:
    rows = ExportDim("rows", min=2, max=64)
    program = compiled(Layers(), torch.ones(8, 16), dynamic_shapes=({0: rows},)).parts.program
    for size in (2, 17, 64):
        assert plan_problems(program, {"rows": size}) == []


def test_a_planner_that_ends_values_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled(Layers(), torch.ones(16, 16)).parts.program
    real = binding.plan_memory

    def plan(sizes: Sequence[int], first: Sequence[int], last: Sequence[int], alignment: int) -> Any:
        return real(sizes, first, list(first), alignment)

    monkeypatch.setattr(binding, "plan_memory", plan)
    problems = plan_problems(program, {})
    assert any(
        "'softmax' (matmul at" in line.partition(" writes over ")[0] or "which is needed until step" in line
        for line in problems
    )
    assert all("test_memory_plan.py:" in line for line in problems) and problems


def test_an_artifact_that_ends_a_value_inside_of_a_loop_is_refused(tmp_path: Path) -> None:
    """Without what the artifact states, a value that a loop reads ends with its last reader there."""
    model = compiled(Looped(), torch.ones(16, 16))
    program = model.parts.program
    assert plan_problems(program, {}) == []
    cut = without_lives(model, tmp_path / "cut.lk")
    (problem,) = plan_problems(cut, {})
    assert "writes over the value of step" in problem and "which is needed until step" in problem
    with pytest.raises(ArtifactError, match="values lie at one place of memory while both are needed") as caught:
        verify_artifact(tmp_path / "cut.lk")
    assert caught.value.code == "LK8001" and problem in caught.value.details


def test_the_cut_plan_is_indeed_wrong(tmp_path: Path) -> None:
    """What is refused gives wrong numbers: the check is none of form."""
    module, x = Looped().eval(), torch.from_numpy(np.random.default_rng(0).standard_normal((16, 16), np.float32))
    model = compiled(module, x)
    without_lives(model, tmp_path / "cut.lk")
    (found,) = lowerkit.load(tmp_path / "cut.lk").run(x.numpy())
    assert not np.allclose(found, module(x).numpy(), atol=1e-4)
    np.testing.assert_allclose(model(x), module(x).numpy(), rtol=1e-5, atol=1e-6)
