"""Plans that are chosen automatically, for models of six kinds, against eager on one device by gate A."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.parity.check import check_program
from lowerkit.program.program import Program
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.spmd.auto.choose import AutoChoice, choose_plan
from lowerkit.spmd.cost.machine import DeviceModel
from lowerkit.spmd.mesh import Mesh
from lowerkit.spmd.plan_file import entries_of, make_plan
from tests.support.mesh.experts import mixture
from tests.support.models import decoder_program, symbolic_program, tiny_program


@cache
def program(name: str) -> Program:
    return capture(*mixture()) if name == "mixture" else tiny_program(name)


@cache
def passed(name: str, mesh: str) -> AutoChoice:
    choice = choose_plan(program(name), Mesh.parse(mesh))
    report = check_program(program(name).copy(), sharding=choice.plan, per_op=False)
    assert report.passed, [f"{row.name}: {row.verdict.reason}" for row in report.outputs]
    assert mesh in report.mesh
    return choice


@pytest.mark.parametrize(
    "name",
    [
        *("llama", "resnet50", "mixture"),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("vit_b16", "gpt2", "bert_base")),
    ],
)
def test_weights_split(name: str) -> None:
    choice = passed(name, "tp=2")
    whole = choose_plan(program(name), Mesh.parse("tp=1")).cost
    assert choice.cost.weight_bytes < whole.weight_bytes * 0.75
    assert set(choice.entries["tp"].values()) <= {"column", "row", "vocabulary", "replicate"}


MESHES: list[Any] = [
    *(("llama", mesh) for mesh in ("tp=4", "dp=2", "pp=2", "sp=2", "dp=2,pp=2,tp=2")),
    pytest.param("llama", "tp=2,dp=2", marks=pytest.mark.exhaustive),
    *(("resnet50", "dp=2,tp=2"), ("bert_base", "dp=2"), ("vit_b16", "pp=2")),
]


@pytest.mark.variants("mesh")
@pytest.mark.parametrize(("name", "mesh"), MESHES)
def test_models_on_meshes(name: str, mesh: str) -> None:
    choice = passed(name, mesh)
    assert list(choice.entries) == [axis.name for axis in Mesh.parse(mesh).axes]


def test_micro_batches_keep_stages_busy() -> None:
    slow = DeviceModel(flops=1e9, bandwidth=1e12, memory=1 << 30)
    choice = choose_plan(program("resnet50"), Mesh.parse("pp=2"), slow)
    assert choice.plan.stages is not None
    assert choice.plan.stages.micro_batches == 2
    assert check_program(program("resnet50").copy(), sharding=choice.plan, per_op=False).passed


def test_experts() -> None:
    choice = passed("mixture", "ep=2,tp=2")
    assert set(choice.entries["ep"].values()) == {"expert"}


def test_weights_of_one_module_have_choices_of_their_own() -> None:
    entries = choose_plan(program("mixture"), Mesh.parse("tp=2")).entries["tp"]
    assert entries == {"*.up": "column", "*.down": "row"}


def test_key_heads_that_are_fewer_than_the_ranks() -> None:
    entries = passed("llama", "tp=4").entries["tp"]
    assert (entries["*.q_proj"], entries["*.o_proj"]) == ("column", "row")


def test_the_written_plan_compiles_to_the_same_program(tmp_path: Path) -> None:
    mesh = Mesh.parse("dp=2,tp=2")
    chosen = choose_plan(program("llama"), mesh).plan
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(entries_of(chosen)))
    given = make_plan(mesh, json.loads(path.read_text()))
    identities: list[str] = []
    for number, plan in enumerate((chosen, given)):
        own = replace(program("llama").copy(), weights=program("llama").weights.fork())
        compile_program(own, CompileOptions(golden=False, sharding=plan)).save(tmp_path / f"{number}.lk")
        identities.append(open_artifact(tmp_path / f"{number}.lk").manifest.content_id)
    assert identities[0] == identities[1]


def test_symbolic_sizes() -> None:
    captured = symbolic_program("llama")
    choice = choose_plan(captured, Mesh.parse("tp=2"))
    assert choice.entries["tp"]["*.o_proj"] == "row"
    assert check_program(captured, sharding=choice.plan, per_op=False).passed


def test_caches_as_states() -> None:
    captured = decoder_program("llama", 5)
    choice = choose_plan(captured, Mesh.parse("tp=2"))
    assert check_program(captured, sharding=choice.plan, per_op=False).passed


def test_auto_from_python() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)).eval()
    x = torch.randn(4, 16)
    compiled = lowerkit.compile(module, (x,), mesh="tp=2", shard="auto")
    np.testing.assert_allclose(compiled(x), module(x).detach().numpy(), atol=1e-6)
    assert compiled.sharding is not None
    assert compiled.sharding.plan == {"tp": {"0": "column", "2": "row"}}
    machine, first, *_ = compiled.sharding.reasons
    assert machine.startswith("times are those of a core")
    assert first.startswith("tp: (0) column: ")
