"""GPT-2 and Llama, small, token by token with their caches as state: the tokens and logits of eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import compile_program, plan_program
from tests.support.models import decoder_program, decoders

STEPS = 64
PROMPT = torch.tensor([[5, 17, 3, 88, 41]])


def eager_tokens(name: str, prompt: torch.Tensor) -> tuple[list[int], list[Any]]:
    """Greedy tokens and logits of the transformers model with transformers' own growing cache."""
    model = decoders().language_model(name, tiny=True)
    tokens: list[int] = []
    logits: list[Any] = []
    with torch.no_grad():
        step, cache = prompt, None
        for _ in range(STEPS):
            result = model(input_ids=step, past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            logits.append(result.logits[0, -1].numpy())
            tokens.append(int(logits[-1].argmax()))
            step = torch.tensor([[tokens[-1]]])
    return tokens, logits


def greedy(session: Any, prompt: torch.Tensor) -> tuple[list[int], list[Any]]:
    """The same from an artifact that takes any number of tokens: the prompt at once, then each token alone."""
    tokens: list[int] = []
    logits: list[Any] = []
    step, position = prompt.numpy(), 0
    for _ in range(STEPS):
        positions = np.arange(position, position + step.shape[1])
        (result,) = session.run(input_ids=step, cache_position=positions)
        position += step.shape[1]
        logits.append(result[0, -1])
        tokens.append(int(result[0, -1].argmax()))
        step = np.array([[tokens[-1]]])
    return tokens, logits


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_one_artifact_for_the_prompt_and_every_token(name: str) -> None:
    compiled = compile_program(decoder_program(name, 5, any_number=True))
    expected, expected_logits = eager_tokens(name, PROMPT)
    for _ in range(2):
        tokens, logits = greedy(compiled.session, PROMPT)
        assert tokens == expected
        np.testing.assert_allclose(np.stack(logits), np.stack(expected_logits), rtol=1.3e-6, atol=1e-5)
        compiled.session.reset()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_no_token_moves_a_cache(name: str) -> None:
    """Every write to a cache is in place: what a step reads and writes beside the attention does not grow with it."""
    longer = decoders().decoder(name, tiny=True, cache=2 * decoders().TINY_CACHE)
    programs = decoder_program(name), capture(longer, (), kwargs=decoders().example())
    short, long = (
        [step for step in plan_program(program).program.steps if step.kind in ("scatter", "copy")]
        for program in programs
    )
    assert [(step.name, step.bytes) for step in short] == [(step.name, step.bytes) for step in long]
    assert sum(step.kind == "scatter" for step in long) == 4


def test_check_compares_the_caches() -> None:
    module = decoders().decoder("llama", tiny=True)
    report = lowerkit.check(module, (), kwargs=decoders().example(3))
    assert report.passed, report.first_failure
    states = {row.name for row in report.outputs if row.kind == "state"}
    assert {"key_cache_0", "value_cache_1", "cumulative_length_0"} <= states
    assert not module.get_buffer("key_cache_0").any(), "the check left the user's module as it was"
