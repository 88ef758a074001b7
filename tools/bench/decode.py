"""Tokens a second of greedy decoding, interleaved: lowerkit beside eager PyTorch, GPT-2 and Llama, batch 1.

    lowerkit       one artifact for any number of tokens a call; the cache is a state of the session
    eager          transformers' model with its growing cache, as ``generate`` uses it
    eager-static   the module that lowerkit compiled, with its static cache

Every contender takes the same prompt and decodes the same number of tokens, and all must choose the same ones: that is
checked before anything is timed. The time of a token is that of a whole run over its tokens; prompts are timed apart.

    python tools/bench/decode.py --model llama --threads 1
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import torch

import lowerkit

NAMES = ("gpt2", "llama")
Generate = Callable[[torch.Tensor, int], tuple[list[int], float, float]]
"""From a prompt and a number of tokens to the tokens, seconds of the prompt, seconds of the rest."""


def lowerkit_contender(session: Any) -> Generate:
    """Greedy decoding by an artifact."""

    def step(tokens: Any, position: int) -> int:
        positions = np.arange(position, position + tokens.shape[1])
        (logits,) = session.run(input_ids=tokens, cache_position=positions)
        return int(logits[0, -1].argmax())

    def generate(prompt: torch.Tensor, count: int) -> tuple[list[int], float, float]:
        session.reset()
        return _timed(lambda: step(prompt.numpy(), 0), lambda t, at: step(np.array([[t]]), at), prompt.shape[1], count)

    return generate


def static_contender(module: Any) -> Generate:
    """Greedy decoding by the module itself."""

    def step(tokens: torch.Tensor, position: int) -> int:
        positions = torch.arange(position, position + tokens.shape[1])
        return int(module(input_ids=tokens, cache_position=positions)[0, -1].argmax())

    def generate(prompt: torch.Tensor, count: int) -> tuple[list[int], float, float]:
        return _timed(lambda: step(prompt, 0), lambda t, at: step(torch.tensor([[t]]), at), prompt.shape[1], count)

    return generate


def growing_contender(model: Any) -> Generate:
    """Greedy decoding with transformers' default cache."""

    def generate(prompt: torch.Tensor, count: int) -> tuple[list[int], float, float]:
        cache: list[Any] = [None]

        def step(tokens: torch.Tensor) -> int:
            result = model(input_ids=tokens, past_key_values=cache[0], use_cache=True)
            cache[0] = result.past_key_values
            return int(result.logits[0, -1].argmax())

        return _timed(lambda: step(prompt), lambda t, _: step(torch.tensor([[t]])), prompt.shape[1], count)

    return generate


def _timed(
    first: Callable[[], int], following: Callable[[int, int], int], start: int, count: int
) -> tuple[list[int], float, float]:
    began = time.perf_counter()
    tokens = [first()]
    prompted = time.perf_counter()
    for index in range(count - 1):
        tokens.append(following(tokens[-1], start + index))
    return tokens, prompted - began, time.perf_counter() - prompted


def measure(name: str, *, tiny: bool, threads: int, prompt_length: int, count: int, rounds: int) -> dict[str, Any]:
    """Returns the figures of one model."""
    decoders = _decoders()
    torch.set_num_threads(threads)
    cache = prompt_length + count
    module = decoders.decoder(name, tiny=tiny, cache=cache)
    kwargs, shapes = decoders.example(prompt_length), decoders.dynamic_shapes(cache - 1)
    compiled = lowerkit.compile(module, (), kwargs=kwargs, dynamic_shapes=shapes, threads=threads)
    contenders = {
        "lowerkit": lowerkit_contender(compiled.session),
        "eager": growing_contender(decoders.language_model(name, tiny=tiny)),
        "eager-static": static_contender(module),
    }
    prompt = torch.randint(100, (1, prompt_length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        chosen = {who: generate(prompt, count)[0] for who, generate in contenders.items()}
        unequal = [who for who, tokens in chosen.items() if tokens != chosen["eager"]]
        if unequal:
            raise click.ClickException(f"{name}: {', '.join(unequal)} chose other tokens than eager")
        samples: dict[str, list[tuple[float, float]]] = {who: [] for who in contenders}
        order = list(contenders)
        for number in range(rounds):
            shift = number % len(order)
            for who in order[shift:] + order[:shift]:
                _, prompted, decoded = contenders[who](prompt, count)
                samples[who].append((prompted, decoded))
    return {
        "model": name,
        "threads": threads,
        "prompt": prompt_length,
        "tokens": count,
        "rounds": rounds,
        "contenders": {
            who: {
                "prompt_ms": 1e3 * float(np.median([prompted for prompted, _ in found])),
                "ms_per_token": 1e3 * float(np.median([decoded for _, decoded in found])) / (count - 1),
                "tokens_per_second": (count - 1) / float(np.median([decoded for _, decoded in found])),
            }
            for who, found in samples.items()
        },
    }


def _decoders() -> ModuleType:
    spec = importlib.util.spec_from_file_location("decoders", Path(__file__).with_name("decoders.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["decoders"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@click.command()
@click.option("--model", "names", multiple=True, type=click.Choice(NAMES), help="Repeat; all by default.")
@click.option("--tiny", is_flag=True, help="The small models of the tests.")
@click.option("--threads", default=1, show_default=True)
@click.option("--prompt", "prompt_length", default=16, show_default=True, help="Tokens of the prompt.")
@click.option("--tokens", "count", default=64, show_default=True, help="Tokens to decode.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(
    names: tuple[str, ...],
    tiny: bool,
    threads: int,
    prompt_length: int,
    count: int,
    rounds: int,
    json_path: Path | None,
) -> None:
    """Time greedy decoding beside eager."""
    documents: list[dict[str, Any]] = []
    click.echo(f"{'model':8} {'contender':14} {'prompt ms':>10} {'ms/token':>10} {'tokens/s':>10}")
    for name in names or NAMES:
        found = measure(name, tiny=tiny, threads=threads, prompt_length=prompt_length, count=count, rounds=rounds)
        documents.append(found)
        for who, timing in found["contenders"].items():
            figures = [timing["prompt_ms"], timing["ms_per_token"], timing["tokens_per_second"]]
            click.echo(f"{name:8} {who:14} " + " ".join(f"{figure:10.2f}" for figure in figures))
    if json_path is not None:
        json_path.write_text(json.dumps(documents, indent=2))


if __name__ == "__main__":
    main()
