"""What the commands say of an artifact for a mesh of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.mesh.artifacts import COLUMNS, write_mesh, write_one_rank
from tests.unit.cli.conftest import RunCommand


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_inspect_shows_axes_parts_and_collectives(ranks: int, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    path = write_mesh(tmp_path / "m.lk", ranks)
    outcome = lowerkit_command("inspect", path, "--json")
    assert outcome.code == 0, outcome.err
    facts = json.loads(outcome.out)
    row = 4 * COLUMNS
    assert facts["mesh"] == [{"name": "tp", "size": ranks}]
    assert facts["sharded"] == [{"name": "shards", "axis": "tp", "bytes": ranks * row, "rank_bytes": row}]
    assert facts["totals"]["weight_bytes"] - facts["totals"]["rank_weight_bytes"] == (ranks - 1) * row
    first, second = facts["steps"]
    assert first["collective"] is None
    expected = {
        "operation": "all_reduce",
        "axis": "tp",
        "dtype": "f32",
        "reduction": "sum",
        "phase": "run",
        "root": None,
        "peer": None,
        "bytes": row,
    }
    assert second["collective"] == expected

    text = lowerkit_command("inspect", path).out
    assert f"mesh tp={ranks}" in text
    (weight,) = [line.split() for line in text.splitlines() if line.startswith("shards ")]
    assert weight == ["shards", "tp", str(row), str(ranks * row)]
    (collective,) = [line.split() for line in text.splitlines() if "all_reduce" in line and " sum " in line]
    assert collective[1:7] == ["all_reduce", "tp", "f32", "sum", "run", str(row)]


def test_inspect_says_nothing_of_ranks_where_there_is_one(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    path = write_one_rank(tmp_path / "one.lk")
    facts = json.loads(lowerkit_command("inspect", path, "--json").out)
    assert facts["mesh"] == [] and facts["sharded"] == []
    assert facts["totals"]["rank_weight_bytes"] == facts["totals"]["weight_bytes"]
    assert "mesh" not in lowerkit_command("inspect", path).out


MODEL = """
import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)).eval(), (torch.randn(3, 6),)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of ``m.py``, the model, and ``plan.json``, a plan for it; the working folder."""
    (tmp_path / "m.py").write_text(MODEL)
    (tmp_path / "plan.json").write_text('{"0": "column", "2": "row"}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


MESH = ("--mesh", "tp=2", "--shard", "plan.json")


def test_a_model_is_compiled_verified_run_and_checked(model: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("compile", "m.py:model", *MESH, "-o", "two.lk", "--json")
    assert outcome.code == 0, outcome.err
    assert "tp=2: 2 of 2 products and tables split, 1 all_reduce" in outcome.err
    facts = json.loads(outcome.out)["mesh"]
    assert (facts["mesh"], facts["ranks"], facts["split"], facts["whole"]) == ("tp=2", 2, ["0", "2"], [])
    verified = lowerkit_command("verify", "two.lk")
    assert verified.code == 0, verified.err
    assert "as stored (bitwise" in verified.out
    ran = lowerkit_command("run", "two.lk", "--sim", "2", "--input", "input:3x6:f32", "-o", "out")
    assert ran.code == 0, ran.err
    checked = lowerkit_command("check", "m.py:model", *MESH, "--json")
    assert checked.code == 0, checked.err
    report = json.loads(checked.out)
    assert report["passed"]
    assert report["mesh"].startswith("tp=2: 2 of 2")


def test_a_wrong_plan_leaves_an_earlier_output_whole(model: Path, lowerkit_command: RunCommand) -> None:
    (model / "two.lk").write_bytes(b"earlier")
    (model / "wrong.json").write_text('{"0": "column", "22": "row"}')
    outcome = lowerkit_command("compile", "m.py:model", "--mesh", "tp=2", "--shard", "wrong.json", "-o", "two.lk")
    assert outcome.code == 2
    assert "LK1011" in outcome.err
    assert "'22' names no module of the model" in outcome.err
    assert (model / "two.lk").read_bytes() == b"earlier"


def test_a_mesh_that_does_not_divide(model: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("compile", "m.py:model", "--mesh", "tp=3", "--shard", "plan.json")
    assert outcome.code == 4
    assert "LK4007" in outcome.err
    assert "(in 0)" in outcome.err  # the line is PyTorch's own: a Sequential has no line of the user
    assert "8 does not divide by 3" in outcome.err


def test_stage_files_of_a_mesh(model: Path, lowerkit_command: RunCommand) -> None:
    assert lowerkit_command("compile", "m.py:model", *MESH, "--compile-to", "fused", "-o", "s.mlir").code == 0
    again = lowerkit_command("compile", "s.mlir", "--compile-from", "fused", *MESH, "-o", "two.lk")
    assert again.code == 2
    assert "--mesh, --shard has no effect on a program that is split among ranks already" in again.err
    assert lowerkit_command("compile", "s.mlir", "--compile-from", "fused", "-o", "two.lk").code == 0
    assert lowerkit_command("run", "two.lk", "--sim", "2", "--input", "input:3x6:f32").code == 0
