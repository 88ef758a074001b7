"""Models split among the ranks of a mesh, against eager on one device by gate A: each capture, ragged, in bf16."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.capture.load_model import capture_path
from lowerkit.errors import UsageError
from lowerkit.parity.check import check_program
from lowerkit.parity.report.report import Report
from lowerkit.program.program import Program
from lowerkit.runtimes.mesh.simulated import run_simulated
from lowerkit.runtimes.verify import verify_artifact
from lowerkit.spmd.sharding import sharding_of
from tests.support.models import benchmark_models, decoder_program, symbolic_program, tiny_program


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + self.down(nn.functional.gelu(self.up(x))), dim=-1)


PLANS = {
    "mlp": {"up": "column", "down": "row"},
    "gpt2": {
        "*.c_attn": "column",
        "*.attn.c_proj": "row",
        "*.c_fc": "column",
        "*.mlp.c_proj": "row",
        "*.wte": "vocabulary",
        "*.lm_head": "vocabulary",
    },
    "llama": {
        "*.[qkv]_proj": "column",
        "*.o_proj": "row",
        "*.gate_proj": "column",
        "*.up_proj": "column",
        "*.down_proj": "row",
        "*.embed_tokens": "vocabulary",
        "*.lm_head": "vocabulary",
    },
}
SUMS = {"mlp": 1, "gpt2": 5, "llama": 5}
"""Each layer of a decoder takes two sums, and the table one."""


def make(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    if name == "mlp":
        return Mlp().eval(), (torch.randn(3, 16),)
    return benchmark_models().tiny(name)


def captured(name: str, dtype: torch.dtype = torch.float32) -> Program:
    if name != "mlp":
        return tiny_program(name, dtype)
    module, (x,) = make(name)
    return capture(module.to(dtype), (x.to(dtype),))


def checked(program: Program, name: str, mesh: str = "tp=2") -> Report:
    plan = sharding_of(mesh, PLANS[name])
    report = check_program(program, sharding=plan)
    failing = [row for row in [*report.ops, *report.outputs] if not row.verdict.passed]
    assert report.passed, "\n".join(f"{row.name} {row.kind}: {row.verdict.reason}" for row in failing)
    assert plan is not None
    assert [each.kind for each in plan.axes[0].report.collectives].count("all_reduce") == SUMS[name]
    assert plan.axes[0].report.whole == []
    return report


@pytest.mark.parametrize("mesh", ["tp=2", "tp=4"])
@pytest.mark.parametrize("name", PLANS)
def test_torch_export(name: str, mesh: str) -> None:
    report = checked(captured(name), name, mesh)
    assert mesh in report.mesh
    assert (
        any(row.kind == "all_reduce" for row in report.ops) or name != "llama"
    )  # a sum is compared where no bias follows


@pytest.mark.parametrize("form", ["bf16", "torchscript", "onnx"])
@pytest.mark.parametrize("name", PLANS)
def test_forms(name: str, form: str, tmp_path: Path) -> None:
    programs = {
        "bf16": lambda: captured(name, torch.bfloat16),
        "torchscript": lambda: through_torchscript(name, tmp_path),
        "onnx": lambda: through_onnx(name, tmp_path),
    }
    checked(programs[form](), name)


def through_torchscript(name: str, tmp_path: Path) -> Program:
    module, inputs = make(name)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, inputs, check_trace=False)
    torch.jit.save(traced, str(tmp_path / "m.pt"))
    return capture_path(str(tmp_path / "m.pt"), example_inputs=inputs)


def through_onnx(name: str, tmp_path: Path) -> Program:
    module, inputs = make(name)
    path, array = tmp_path / "m.onnx", tmp_path / "x.npy"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False, opset_version=22)
    np.save(array, inputs[0].numpy())
    given = f"{'x' if name == 'mlp' else 'input_ids'}=@{array}"
    return capture_path(str(path), [given], [])  # torch's exporter states the module of each node


@pytest.mark.parametrize("name", ["mlp", pytest.param("llama", marks=pytest.mark.exhaustive)])
def test_symbolic_batch_and_length(name: str) -> None:
    if name == "mlp":
        module, inputs = make(name)
        program = capture(module, inputs, dynamic_shapes=({0: torch.export.Dim("batch", max=8)},))
    else:
        program = symbolic_program(name)
    report = checked(program, name)
    assert len(report.sizes) > 1


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_caches_as_states(name: str) -> None:
    report = checked(decoder_program(name, 5, any_number=name == "llama"), name)
    assert [row.kind for row in report.outputs].count("state") >= 5


class Branches(nn.Module):
    """Splits products inside of branches, which are taken by a sum that all ranks have."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)

        def positive(y: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return self.one(y) + h[:, :8]

        def negative(y: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return self.other(y) * 2 + h[:, 8:]

        y = self.down(torch.relu(hidden))
        return torch.cond(y[0].sum() - y[1].sum() > 0, positive, negative, (y, hidden))


def test_products_in_branches() -> None:
    torch.manual_seed(0)
    module, plan = Branches().eval(), {"up": "column", "down": "row", "one": "column", "other": "row"}
    compiled = lowerkit.compile(module, (torch.randn(3, 8),), mesh="tp=2", shard=plan)
    taken: set[bool] = set()
    for x in 4 * torch.randn(16, 3, 8):
        np.testing.assert_allclose(compiled(x), module(x).detach().numpy(), rtol=1e-5, atol=2e-5)
        y = module.down(torch.relu(module.up(x)))
        taken.add(bool(y[0].sum() - y[1].sum() > 0))
    assert taken == {True, False}


def test_ranks_with_simulated_cards() -> None:
    program = capture(*make("mlp"))
    report = check_program(program, target="cuda:sm_90", device="cuda-sim", sharding=sharding_of("tp=2", PLANS["mlp"]))
    assert report.passed, report.first_failure


def test_one_file_for_two_levels_and_two_ranks(tmp_path: Path) -> None:
    module, (x,) = make("mlp")
    compiled = lowerkit.compile(module, (x,), "cpu:x86-64-v3", mesh="tp=2", shard=PLANS["mlp"])
    both = lowerkit.compile(module, (x,), "cpu:x86-64-v3,x86-64-v4", mesh="tp=2", shard=PLANS["mlp"])
    both.save(tmp_path / "both.lk")
    (found,) = run_simulated(tmp_path / "both.lk", [x.numpy()], target="cpu:x86-64-v3")[1]
    np.testing.assert_array_equal(found, compiled(x))
    assert verify_artifact(tmp_path / "both.lk").passed


def test_from_python_all_ranks_run_in_this_process() -> None:
    module, (x,) = make("mlp")
    compiled = lowerkit.compile(module, (x,), mesh="tp=2", shard=PLANS["mlp"])
    np.testing.assert_allclose(compiled(x), module(x).detach().numpy(), atol=1e-6)
    assert compiled.sharding is not None
    assert compiled.sharding.collectives == {"all_reduce": 1}
    with pytest.raises(UsageError, match="is for a mesh tp=2"):
        _ = compiled.session
