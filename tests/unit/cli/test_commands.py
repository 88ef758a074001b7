"""The commands from end to end on a small model: what they write, print and return."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from tests.unit.cli.conftest import RunCommand


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(self.norm(torch.relu(self.first(x)))), -1)


@pytest.fixture(scope="module")
def model() -> Small:
    torch.manual_seed(1)
    return Small().eval()


@pytest.fixture
def exported(model: Small, tmp_path: Path) -> Path:
    path = tmp_path / "small.pt2"
    torch.export.save(torch.export.export(model, (torch.randn(4, 8),)), path)
    return path


def test_compile_run_verify_inspect(exported: Path, model: Small, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    artifact = tmp_path / "small.lk"
    compiled = lowerkit_command("compile", exported, "--input", "x:4x8:f32", "-o", artifact, "--json")
    assert compiled.code == 0, compiled.err
    document = json.loads(compiled.out)
    assert document["schema"] == "lowerkit.compile" and document["kernels"] >= 1
    assert document["bytes"] == artifact.stat().st_size

    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    run = lowerkit_command("run", artifact, "--input", f"x=@{tmp_path}/x.npy", "-o", tmp_path / "out", "--json")
    assert run.code == 0, run.err
    (output,) = json.loads(run.out)["outputs"]
    expected = model(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(np.load(output["file"]), expected, rtol=1e-5, atol=1e-6)

    verified = lowerkit_command("verify", artifact, "--json")
    assert verified.code == 0, verified.err
    assert json.loads(verified.out)["passed"] is True

    inspected = lowerkit_command("inspect", artifact, "--json")
    assert inspected.code == 0, inspected.err
    facts = json.loads(inspected.out)
    assert facts["kinds"]["matmul"] == 2 and facts["totals"]["flops"] >= 2 * 4 * (8 * 16 + 16 * 3)
    assert lowerkit_command("inspect", artifact, "--all").code == 0


def test_check_agrees_and_names_source_lines(exported: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("check", exported, "--input", "x:4x8:f32", "--json")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert document["passed"] and len(document["ops"]) >= 3
    assert all(Path(__file__).name in row["location"] for row in document["ops"])


def test_stages_can_be_left_and_taken_up(exported: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    direct = tmp_path / "direct.lk"
    assert lowerkit_command("compile", exported, "--input", "x:4x8:f32", "-o", direct).code == 0
    for stage in ("captured", "raised", "canonical", "partitioned", "layout", "fused"):
        text = tmp_path / f"{stage}.mlir"
        left = lowerkit_command("compile", exported, "--input", "x:4x8:f32", "--compile-to", stage, "-o", text)
        assert left.code == 0, left.err
        again = tmp_path / f"{stage}.lk"
        taken_up = lowerkit_command("compile", text, "--compile-from", stage, "-o", again, "--json")
        assert taken_up.code == 0, taken_up.err
        x = tmp_path / "x.npy"
        np.save(x, np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
        results = []
        for artifact in (direct, again):
            assert lowerkit_command("run", artifact, "--input", f"x=@{x}", "-o", tmp_path / "o").code == 0
            (file,) = (tmp_path / "o").glob("*.npy")
            results.append(np.load(file))
        np.testing.assert_array_equal(*results)


def test_dump_ir_writes_one_file_a_pass(exported: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    folder = tmp_path / "ir"
    command = ["compile", exported, "--input", "x:4x8:f32", "-o", tmp_path / "a.lk", "--dump-ir", folder]
    assert lowerkit_command(*command).code == 0
    files = sorted(path.name for path in folder.glob("*.mlir"))
    assert len(files) > 10 and files[0].startswith("00-")
    assert "lk.region" in (folder / files[-1]).read_text()


def test_opt_runs_passes_and_lists_them(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    path = tmp_path / "m.mlir"
    path.write_text("func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  return %x : tensor<2xf32>\n}\n")
    outcome = lowerkit_command("opt", path, "--passes", "simplify", "--json")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert "func.func @main" in document["module"] and document["passes"][0]["name"] == "simplify"
    listed = lowerkit_command("opt", "-", "--list", "--json")
    assert {"simplify", "fold-constants"} <= {entry["name"] for entry in json.loads(listed.out)["passes"]}
    wrong = lowerkit_command("opt", path, "--passes", "simplfy")
    assert wrong.code == 2 and "LK3003" in wrong.err


@pytest.mark.parametrize("command", ["targets", "cache", "doctor"])
def test_information_commands(command: str, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command(command, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["schema"] == f"lowerkit.{command}"
    assert lowerkit_command(command).code == 0


def test_bench_interleaves_with_eager(exported: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command(
        "bench", exported, "--input", "x:4x8:f32", "--peers", "eager", "--seconds", "0.2", "--json", "-q"
    )
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert document["lowerkit"]["median_ms"] > 0
    assert document["peers"]["eager"]["median_ms"] > 0 and document["peers"]["eager"]["sqnr_db"] > 100


class Total(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((3,), 10.0, dtype=torch.bfloat16))
        self.total: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total * 2


def test_states_go_from_run_to_run(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    """Each run is a process of its own in real life: the folder carries the state from one to the next."""
    artifact, states = tmp_path / "total.lk", tmp_path / "states"
    lowerkit.compile(Total().eval(), (torch.ones(3),)).save(artifact)
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    for expected in (11, 12):
        run = lowerkit_command("run", artifact, "--input", f"x=@{tmp_path}/x.npy", "--state", states)
        assert run.code == 0, run.err
        assert np.load(states / "total.npy").view(ml_dtypes.bfloat16).astype(np.float32).tolist() == [expected] * 3
    np.save(states / "total.npy", np.zeros(4, np.float32))
    run = lowerkit_command("run", artifact, "--input", f"x=@{tmp_path}/x.npy", "--state", states)
    assert run.code == 8
    assert "state 'total' has dtype f32, expected bf16" in run.err
    inspected = json.loads(lowerkit_command("inspect", artifact, "--json").out)
    assert inspected["states"] == [{"name": "total", "dtype": "bf16", "shape": [3]}]
