"""Caches that start from data, on meshes of one and two axes: what ranks keep, joined, is what eager keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.cli.main import cli
from lowerkit.compiler import CompileOptions, compile_program, lower_program
from lowerkit.parity.check import check_program
from lowerkit.passes.shard.plan import StateSlices
from lowerkit.program.stage_file import read_stage, write_stage
from lowerkit.spmd.sharding import sharding_of


def copied(cache: torch.Tensor, at: torch.Tensor, row: torch.Tensor) -> None:
    cache.index_copy_(2, at, row)


def sliced(cache: torch.Tensor, at: torch.Tensor, row: torch.Tensor) -> None:
    cache[:, :, 3:4] = row + at


def rolled(cache: torch.Tensor, at: torch.Tensor, row: torch.Tensor) -> None:
    cache.copy_(torch.cat([cache[:, :, 1:], row + at], dim=2))


def chosen(cache: torch.Tensor, at: torch.Tensor, row: torch.Tensor) -> None:
    cache.copy_(torch.where((torch.arange(9) == at)[:, None], row, cache))


Update = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


class Cached(nn.Module):
    """Attention of one token for four query heads and two key heads, beside caches of nine positions."""

    def __init__(self, update: Update = copied) -> None:
        super().__init__()
        self.update = update
        self.q, self.o = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)
        self.k, self.v = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.register_buffer("keys", torch.rand(2, 2, 9, 8))
        self.register_buffer("values", torch.rand(2, 2, 9, 8))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(x).reshape(2, 1, -1, 8).transpose(1, 2) for each in (self.q, self.k, self.v))
        keys, values = self.get_buffer("keys"), self.get_buffer("values")
        self.update(keys, at, k)
        self.update(values, at, v)
        attended = nn.functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        return self.o(attended.transpose(1, 2).reshape(2, 1, 32))


TP, DP = {"[qkv]": "column", "o": "row"}, {"x": "batch"}
HEADS, BATCH = StateSlices(1, 2), StateSlices(0, 2)


@pytest.mark.parametrize(
    ("mesh", "plan", "slices", "update"),
    [
        ("dp=2", DP, [BATCH], copied),
        ("dp=2,tp=2", {"dp": DP, "tp": TP}, [BATCH, HEADS], copied),
        ("tp=4,dp=2", {"dp": DP, "tp": TP}, [HEADS, BATCH], copied),  # two ranks share a key head
        ("tp=2", TP, [HEADS], sliced),
        ("tp=2", TP, [HEADS], rolled),
        ("tp=4", TP, [HEADS], chosen),
    ],
)
def test_what_ranks_keep(mesh: str, plan: dict[str, Any], slices: list[StateSlices], update: Update) -> None:
    sharding = sharding_of(mesh, plan)
    assert sharding is not None
    model = Cached(update).eval()
    report = check_program(capture(model, (torch.randn(2, 1, 16), torch.tensor([4]))), sharding=sharding)
    assert report.passed, report.first_failure
    assert [row.name for row in report.outputs if row.kind == "state"] == ["keys", "values"]
    assert [axis.report.states for axis in sharding.axes] == [{"keys": each, "values": each} for each in slices]


def test_a_stage_file_keeps_how_states_are_cut(tmp_path: Path) -> None:
    inputs = (torch.randn(2, 1, 16), torch.tensor([4]))
    program = capture(Cached().eval(), inputs)
    assert program.eager is not None
    arrays = [each.numpy() for each in inputs]
    _, keys, values = program.eager(*arrays)
    lower_program(program, "fused", CompileOptions(sharding=sharding_of("tp=2", TP)))
    write_stage(program, tmp_path / "fused.mlir")
    runner = compile_program(read_stage(tmp_path / "fused.mlir", "fused"), CompileOptions(golden=False)).runner
    runner.run(*arrays)
    assert [spec.shape for spec in runner.program.signature.states] == [[2, 1, 9, 8], [2, 1, 9, 8]]
    np.testing.assert_allclose(runner.state["keys"], keys, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(runner.state["values"], values, rtol=1e-5, atol=1e-6)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Cached(), Cached()

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(x, at), at)


def test_what_is_said_of_states(tmp_path: Path) -> None:
    plan = {"tp": {f"*.{name}": choice for name, choice in TP.items()}, "pp": {"one.*": 0, "other.*": 1}}
    inputs = (torch.randn(2, 1, 16), torch.tensor([4]))
    compiled = lowerkit.compile(Layers().eval(), inputs, mesh="pp=2,tp=2", shard=plan)
    cache = 4 * 2 * 2 * 9 * 8
    assert compiled.sharding is not None
    assert (compiled.sharding.rank_state_bytes, compiled.sharding.state_bytes) == (cache, 4 * cache)
    assert "0.00 MB of states a rank, 0.00 MB in all" in compiled.sharding.render()
    compiled.save(tmp_path / "m.lk")
    outcome = CliRunner().invoke(cli, ["inspect", str(tmp_path / "m.lk"), "--json"])
    facts = json.loads(outcome.output)
    cuts = [{"axis": "tp", "dim": 1, "parts": 2}]
    entry = {"cuts": cuts, "shape": [2, 2, 9, 8], "bytes": cache, "rank_bytes": cache // 2}
    assert facts["shared_states"] == [{"name": f"one.{name}", **entry} for name in ("keys", "values")]
    assert facts["totals"]["state_bytes"] == cache
    assert [(stage["place"], stage["states"], stage["state_bytes"]) for stage in facts["stages"]] == [
        ({"pp": 0}, ["one.keys", "one.values"], cache),
        ({"pp": 1}, ["other.keys", "other.values"], cache),
    ]
    lines = CliRunner().invoke(cli, ["inspect", str(tmp_path / "m.lk")]).output.splitlines()
    assert ["one.keys", "tp", "dim", "1", "in", "2", str(cache // 2), str(cache)] in [line.split() for line in lines]
    assert any(line.startswith("a rank at pp=1: weights 0.00 MB, states 0.00 MB") for line in lines)
