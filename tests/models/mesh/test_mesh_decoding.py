"""Decoders with their caches as state on the ranks of a mesh: over 64 steps the tokens of eager on one device.

Each rank has its part of the caches and no more: along heads, those of its stage.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.mesh.ranks import join_mesh
from lowerkit.runtimes.mesh.simulated import simulated_sessions
from lowerkit.runtimes.session import Session
from lowerkit.spmd.sharding import sharding_of
from tests.models.test_decoding import PROMPT, STEPS, eager_tokens, greedy
from tests.models.test_mesh_models import PLANS
from tests.support.models import decoder_program
from tests.support.processes import run_processes

CACHE_BYTES = {"gpt2": 4 * 4 * 80 * 8 * 4, "llama": 4 * 2 * 80 * 8 * 4}
"""Four caches of 80 positions and heads of 8: GPT-2 has four of them, Llama two key heads."""

Decoded = tuple[list[int], list[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this module's artifacts lie: tests share them."""
    return tmp_path_factory.mktemp("decoders")


@cache
def compiled(folder: Path, name: str, mesh: str, tokens: int | None = None) -> Path:
    """Compiles a decoder for a mesh: of any number of tokens, or for ``tokens`` at a time."""
    path = folder / f"{name}-{mesh}.lk"
    program = decoder_program(name, tokens or 5, any_number=tokens is None)
    sharding = sharding_of(mesh, PLANS[name] if mesh.startswith("tp") else "auto", program)
    compile_program(program, CompileOptions(golden=False, sharding=sharding)).save(path)
    return path


def one_by_one(session: Session, prompt: torch.Tensor) -> Decoded:
    """Greedy tokens from an artifact that takes one token at a time."""
    fed: list[int] = prompt[0].tolist()
    logits: list[Any] = []
    for position in range(prompt.shape[1] + STEPS - 1):
        (result,) = session.run(input_ids=np.array([[fed[position]]]), cache_position=np.array([position]))
        if position >= prompt.shape[1] - 1:
            logits.append(result[0, -1])
            fed.append(int(result[0, -1].argmax()))
    return fed[prompt.shape[1] :], logits


def require_tokens(found: Decoded, wanted: Decoded) -> None:
    tokens, logits = found
    assert len(tokens) == STEPS
    assert tokens == wanted[0]
    for ours, other in zip(logits, wanted[1], strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-5)


def cache_bytes(session: Session) -> int:
    return sum(value.nbytes for value in session.state.values() if value.ndim == 4)


@pytest.mark.parametrize(
    ("name", "mesh", "parts"),
    [
        ("gpt2", "tp=2", 2),
        pytest.param("llama", "tp=2", 2, marks=pytest.mark.exhaustive),  # processes decode it below
        ("llama", "tp=4", 2),  # two ranks share a key head
        pytest.param("gpt2", "pp=2", 2, marks=pytest.mark.exhaustive),
        ("llama", "pp=2,tp=2", 4),
    ],
)
def test_every_rank_gives_the_tokens_of_one_device(name: str, mesh: str, parts: int, folder: Path) -> None:
    static = mesh.startswith("pp")
    path = compiled(folder, name, mesh, 1 if static else None)
    decode = one_by_one if static else greedy
    wanted = eager_tokens(name, PROMPT)
    artifact = open_artifact(path)
    with simulated_sessions(artifact, 1, "structure") as (simulation, sessions):
        assert [cache_bytes(session) for session in sessions] == [CACHE_BYTES[name] // parts] * len(sessions)
        outcomes = simulation.run(lambda group: decode(sessions[group.rank], PROMPT))
    artifact.close()
    for outcome in outcomes:
        assert not isinstance(outcome, BaseException), outcome
        require_tokens(outcome, wanted)


def serve(rank: int, size: int, path: str, folder: str) -> tuple[Decoded, int]:
    session = join_mesh(path, DirectoryStore(folder), rank, size, deadline=300.0, threads=1)
    return greedy(session, PROMPT), cache_bytes(session)


def test_ranks_that_are_processes_give_these_tokens_too(tmp_path: Path, folder: Path) -> None:
    path = compiled(folder, "llama", "tp=2")
    wanted = eager_tokens("llama", PROMPT)
    for found, held in run_processes(serve, 2, str(path), str(tmp_path / "store"), timeout=400.0):
        require_tokens(found, wanted)
        assert held == CACHE_BYTES["llama"] // 2
