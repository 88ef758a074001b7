"""Planned bytes are those that the runtime allocates: plans without data, against compiled artifacts in all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.capture.load_model import capture_path
from lowerkit.cli.inspect_command import describe
from lowerkit.compiler import CompileOptions, compile_program, plan_program
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.mesh.simulated import simulated_sessions
from lowerkit.spmd.cost.memory import RankMemory, memory_of
from lowerkit.spmd.sharding import sharding_of

ROOT = Path(__file__).resolve().parents[4]
FACTORIES = "docs/distributed/llama405b.py"
WEIGHTS = {
    "*.[qkv]_proj": "column", "*.o_proj": "row", "*.gate_proj": "column", "*.up_proj": "column", "*.down_proj": "row",
    "*.embed_tokens": "vocabulary", "*.lm_head": "vocabulary",
}  # fmt: skip
STAGES = {"*.embed_tokens": 0, "*.layers.0.*": 0, "*.layers.[12].*": 1, "norm": 1, "lm_head": 1}


def planned(factory: str, mesh: str | None, plan: dict[str, Any] | None) -> list[RankMemory]:
    program = capture_path(f"{ROOT / FACTORIES}:{factory}", meta=True)
    parts = plan_program(program, CompileOptions(golden=False, sharding=sharding_of(mesh, plan, program)))
    return [memory_of(spec, {}) for spec in parts.manifest.programs]


@pytest.mark.parametrize(
    ("factory", "mesh", "plan"),
    [
        pytest.param("tiny_prefill", "tp=8", WEIGHTS, marks=pytest.mark.exhaustive),
        ("tiny_decode", "tp=2", WEIGHTS),
        pytest.param("tiny_decode", "pp=2", STAGES, marks=pytest.mark.exhaustive),
        ("tiny_prefill", "pp=2,tp=2", {"tp": WEIGHTS, "pp": STAGES}),
    ],
)
def test_each_rank_allocates_what_was_planned(factory: str, mesh: str, plan: dict[str, Any], tmp_path: Path) -> None:
    memory = planned(factory, mesh, plan)
    program = capture_path(f"{ROOT / FACTORIES}:{factory}")
    inputs = program.example_inputs or []
    compile_program(program, CompileOptions(golden=False, sharding=sharding_of(mesh, plan, program))).save(
        tmp_path / "m.lk"
    )
    artifact = open_artifact(tmp_path / "m.lk")
    stages = len(memory)
    with simulated_sessions(artifact, 1, "structure") as (simulation, sessions):
        ranks = len(sessions)
        for rank, session in enumerate(sessions):
            stage = rank * stages // ranks  # the pipeline is the first axis
            own = memory[stage]
            assert own.activations == session.arena_size(*inputs)
            read = {each.weight: evaluate(each.size, {}) for each in session.program.buffers if each.kind == "weight"}
            assert own.weights == sum(read.values())
            assert own.states == sum(value.nbytes for value in session.state.values())
        outputs = simulation.run(lambda group: sessions[group.rank].run(*inputs))[0]
        assert isinstance(outputs, list)
        given = sum(np.asarray(value).nbytes for value in inputs)
        assert memory[0].arguments == given + sum(value.nbytes for value in outputs)
    artifact.close()
    stored = sum(weight.end - weight.begin for weight in artifact.weights.values())
    assert max(own.weights for own in memory) < stored


def test_caches_are_shared_by_heads_and_by_stages() -> None:
    (whole,) = planned("tiny_decode", None, None)
    (own,) = planned("tiny_decode", "tp=2", WEIGHTS)
    stages = planned("tiny_decode", "pp=2", STAGES)
    both = planned("tiny_decode", "pp=2,tp=2", {"tp": WEIGHTS, "pp": STAGES})
    assert 0 < own.states == whole.states // 2
    assert [stage.states for stage in stages] == [whole.states // 3, whole.states * 2 // 3]  # of three layers
    assert [stage.states for stage in both] == [stage.states // 2 for stage in stages]


def test_inspect_says_the_same_of_one_device(tmp_path: Path) -> None:
    (own,) = planned("tiny_decode", None, None)
    program = capture_path(f"{ROOT / FACTORIES}:tiny_decode")
    compile_program(program, CompileOptions(golden=False)).save(tmp_path / "m.lk")
    artifact = open_artifact(tmp_path / "m.lk")
    weights = sum(weight.end - weight.begin for weight in artifact.weights.values())
    totals = describe(artifact.manifest.programs[0], {}, weights, 0)["totals"]
    first_values = totals["state_bytes"]  # of the caches, which stand beside the weights in the file
    assert own.weights == totals["rank_weight_bytes"] - first_values
    assert (own.states, own.activations) == (totals["state_bytes"], totals["arena_bytes"])
    assert own.communication == 0
    artifact.close()


def test_inspect_counts_the_weights_of_a_stage_alone() -> None:
    program = capture_path(f"{ROOT / FACTORIES}:tiny_prefill")
    parts = plan_program(program, CompileOptions(golden=False, sharding=sharding_of("pp=2", STAGES)))
    totals = [describe(each, {}, parts.weight_bytes, 0)["totals"] for each in parts.manifest.programs]
    assert [each["rank_weight_bytes"] for each in totals] == [
        each.weights for each in planned("tiny_prefill", "pp=2", STAGES)
    ]
    assert sum(each["rank_weight_bytes"] for each in totals) < 1.1 * parts.weight_bytes


def test_what_collectives_name_is_a_part_of_the_arena() -> None:
    (own,) = planned("tiny_prefill", "tp=2", WEIGHTS)
    assert 0 < own.communication <= own.activations
    assert own.total == own.weights + own.states + own.activations + own.scratch + own.arguments
