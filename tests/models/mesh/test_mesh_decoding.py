"""Decoders with their caches as state on the ranks of a mesh: over 64 steps the tokens of eager on one device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.mesh.simulated import simulated_sessions
from lowerkit.spmd.sharding import sharding_of
from tests.models.test_decoding import PROMPT, STEPS, eager_tokens, greedy
from tests.models.test_mesh_models import PLANS
from tests.support.models import decoders


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_rank_gives_the_tokens_of_one_device(name: str, tmp_path: Path) -> None:
    module = decoders().decoder(name, tiny=True)
    shapes = decoders().dynamic_shapes(decoders().TINY_CACHE - 1)
    program = capture(module, (), kwargs=decoders().example(5), dynamic_shapes=shapes)
    compiled = compile_program(program, CompileOptions(golden=False, sharding=sharding_of("tp=2", PLANS[name])))
    compiled.save(tmp_path / "two.lk")
    wanted, logits = eager_tokens(name, PROMPT)
    artifact = open_artifact(tmp_path / "two.lk")
    with simulated_sessions(artifact, 1, "structure") as (simulation, sessions):
        outcomes = simulation.run(lambda group: greedy(sessions[group.rank], PROMPT))
    artifact.close()
    for outcome in outcomes:
        assert not isinstance(outcome, BaseException), outcome
        tokens, found = outcome
        assert len(tokens) == STEPS
        assert tokens == wanted
        for ours, other in zip(found, logits, strict=True):
            np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-5)
