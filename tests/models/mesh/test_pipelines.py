"""Models cut into the stages of a pipeline, against eager by gate A; micro-batches; what cannot be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.parity.check import check_program
from lowerkit.program.program import Program
from lowerkit.runtimes.mesh.simulated import run_simulated
from lowerkit.runtimes.verify import verify_artifact
from lowerkit.spmd.sharding import sharding_of
from tests.models.test_mesh_models import PLANS
from tests.support.models import benchmark_models, fresh, tiny_program


class Deep(nn.Module):
    """Four layers with a residual from the first to the last, and a scale that all of them read."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x
        factor = torch.tanh(scale)
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) * factor
            first = x if number == 0 else first
        return self.head(x + first), first


STAGES = {"layers.0": 0, "layers.1": 0, "layers.2": 1, "layers.3": 1, "head": 1}


def deep(batch: int = 6) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Deep().eval(), (torch.randn(batch, 8), torch.randn(8))


def operations(program: Any) -> list[tuple[str, int, int]]:
    calls = [step.collective for step in program.steps if step.collective is not None]
    return [(call.operation, call.peer, call.root) for call in calls if call.phase != "done"]


def test_two_stages(tmp_path: Path) -> None:
    module, inputs = deep()
    program = capture(module, inputs)
    plan = sharding_of("pp=2", STAGES)
    compiled = compile_program(program, CompileOptions(sharding=plan))
    first, second = compiled.parts.manifest.programs
    assert (first.place, second.place) == ({"pp": 0}, {"pp": 1})
    assert [name for name, _, _ in operations(first)].count("send") == 2  # what layers.1 gives, and the residual
    assert [name for name, _, _ in operations(second)].count("receive") == 2
    weights = [{buffer.weight for buffer in each.buffers if buffer.weight} for each in (first, second)]
    assert not {name for name in weights[0] if name.startswith(("layers.2", "layers.3", "head"))}
    assert not {name for name in weights[1] if name.startswith(("layers.0", "layers.1"))}
    compiled.save(tmp_path / "deep.lk")
    verify_artifact(tmp_path / "deep.lk")
    with torch.no_grad():
        wanted = module(*inputs)
    for outputs in run_simulated(tmp_path / "deep.lk", [value.numpy() for value in inputs]):
        for ours, other in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(ours, other.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [2, 3])
def test_micro_batches(parts: int) -> None:
    module, inputs = deep()
    plan = sharding_of("pp=2", {**STAGES, "micro-batches": parts})
    compiled = compile_program(
        capture(module, (*inputs[:1], inputs[1].expand(6, 8).contiguous())), CompileOptions(sharding=plan)
    )
    sends = [name for name, _, _ in operations(compiled.parts.manifest.programs[0])].count("send")
    assert sends == 2 * parts
    with torch.no_grad():
        wanted = module(inputs[0], inputs[1].expand(6, 8))
    found = compiled(inputs[0], inputs[1].expand(6, 8).contiguous())
    for ours, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, other.numpy(), rtol=1e-5, atol=1e-6)


class Places(nn.Module):
    """Looks up along features by numbers that are no input: what they index is read inside of the loop's body."""

    places: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(5, 3)
        self.register_buffer("places", torch.randint(8, (6, 5)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.gather(torch.relu(self.up(x)), 1, self.places))


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("mesh", ["pp=2", "tp=2,pp=2"])
def test_a_body_reads_what_the_micro_batches_give_together(mesh: str, chosen: bool) -> None:
    program = capture(Places().eval(), (torch.randn(6, 8),))
    axes: dict[str, Any] = {"pp": {"up": 0, "down": 1, "micro-batches": 2}}
    if "tp" in mesh:
        axes["tp"] = {"up": "column"}
    assert check_program(program, sharding=sharding_of(mesh, "auto" if chosen else axes, program)).passed


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("mesh", ["pp=2", "pp=2,tp=2", "tp=2,pp=2"])
def test_decoders(name: str, mesh: str) -> None:
    layers = "layers" if name == "llama" else "h"
    ends = {"*.embed_tokens": 0, "*.lm_head": 1, "*.norm": 1} if name == "llama" else {"*.wte": 0, "*.ln_f": 1}
    stages = {f"*.{layers}.0*": 0, f"*.{layers}.1*": 1, **ends}
    plan = {"pp": stages, "tp": PLANS[name]} if "tp" in mesh else stages
    report = check_program(tiny_program(name), sharding=sharding_of(mesh, plan))
    assert report.passed, [row.verdict.reason for row in report.outputs]


@pytest.fixture(scope="module")
def symbolic_llama() -> Program:
    """Llama of two sequences of any length."""
    module, (ids,) = benchmark_models().tiny("llama")
    shapes = {"input_ids": {1: torch.export.Dim("length", min=2, max=32)}}
    return capture(module, (ids.expand(2, -1).contiguous(),), dynamic_shapes=shapes)


@pytest.mark.parametrize(
    ("mesh", "parts"),
    [
        ("pp=2", 0),
        ("tp=2,pp=2", 2),
        pytest.param("pp=2", 2, marks=pytest.mark.exhaustive),
        pytest.param("tp=2,pp=2", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_stages_of_symbolic_sizes(mesh: str, parts: int, symbolic_llama: Program) -> None:
    """Every stage knows all extents from the inputs; 0 parts: everything is chosen. Compared at several sizes."""
    program = fresh(symbolic_llama)
    axes: dict[str, Any] = {"pp": {"*.embed_tokens": 0, "*.layers.0": 0, "*.layers.1": 1, "*.lm_head": 1}}
    axes["pp"]["micro-batches"] = max(parts, 1)
    if "tp" in mesh:
        axes["tp"] = PLANS["llama"]
    sharding = sharding_of(mesh, axes if parts else "auto", program)
    report = check_program(program, sharding=sharding, per_op=False)
    assert report.passed
    assert len(report.sizes) > 2


def test_a_stage_that_reads_from_a_later_one_is_named() -> None:
    module, inputs = deep()
    plan = sharding_of("pp=2", {"layers.0": 0, "layers.1": 1, "layers.2": 0, "layers.3": 1, "head": 1})
    with pytest.raises(UsageError) as caught:
        compile_program(capture(module, inputs), CompileOptions(sharding=plan))
    assert "'layers.2' is stage 0" in caught.value.message
    assert "reads what stage 1 makes" in caught.value.message


def test_a_module_that_there_is_not_is_named() -> None:
    module, inputs = deep()
    plan = sharding_of("pp=2", {**STAGES, "heads": 1})
    with pytest.raises(UsageError, match="'heads' names no module"):
        compile_program(capture(module, inputs), CompileOptions(sharding=plan))


def test_a_batch_that_does_not_divide_and_an_op_that_needs_all_of_it() -> None:
    module, inputs = deep(5)
    with pytest.raises(UnsupportedError) as caught:
        lowerkit.compile(module, inputs, mesh="pp=2", shard={**STAGES, "micro-batches": 2})
    assert caught.value.code == "LK4007"

    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(x)
            return self.two(x - x.mean(0))

    with pytest.raises(UnsupportedError, match="micro-batches"):
        lowerkit.compile(
            Normalized().eval(), [torch.randn(4, 4)], mesh="pp=2", shard={"one": 0, "two": 1, "micro-batches": 2}
        )


def test_token_ids_are_checked_in_each_micro_batch() -> None:
    stages = {"*.layers.0*": 0, "*.embed_tokens": 0, "*.layers.1*": 1, "*.lm_head": 1, "*.norm": 1, "micro-batches": 2}
    report = check_program(tiny_program("llama"), sharding=sharding_of("pp=2", stages))
    assert report.passed, [row.verdict.reason for row in report.outputs]
