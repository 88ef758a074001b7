"""Tokens a second of greedy decoding, interleaved: lowerkit beside eager PyTorch, GPT-2 and Llama, batch 1.

    lowerkit       one artifact for any number of tokens a call; the cache is a state of the session
    eager          transformers' model with its growing cache, as ``generate`` uses it
    eager-static   the module that lowerkit compiled, with its static cache
    onnxruntime, openvino   the model exported with past keys and values in and out (``decode_peers.py``)

Every contender takes the same prompt and decodes the same number of tokens, and all must choose the same ones: that is
checked before anything is timed. The time of a token is that of a whole run over its tokens; prompts are timed apart.

    python tools/bench/decode.py --model llama --threads 1
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
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
PEERS = ("onnxruntime", "openvino")
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


def past_contender(step: Any, empty: list[tuple[int, ...]]) -> Generate:
    """Greedy decoding by a runtime that takes the past and gives it back."""

    def generate(prompt: torch.Tensor, count: int) -> tuple[list[int], float, float]:
        past = [[np.zeros(shape, np.float32) for shape in empty]]

        def run(tokens: Any) -> int:
            logits, *past[0] = step(tokens, past[0])
            return int(logits[0].argmax())

        return _timed(lambda: run(prompt.numpy()), lambda t, _: run(np.array([[t]])), prompt.shape[1], count)

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


def measure(
    name: str, *, tiny: bool, threads: int, prompt_length: int, count: int, rounds: int, peers: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the figures of one model."""
    decoders = _beside("decoders")
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
    contenders |= _peer_contenders(decoders.language_model(name, tiny=tiny), peers, threads)
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
                "slowest": (count - 1) / max(decoded for _, decoded in found),
                "fastest": (count - 1) / min(decoded for _, decoded in found),
            }
            for who, found in samples.items()
        },
    }


def _peer_contenders(model: Any, peers: tuple[str, ...], threads: int) -> dict[str, Generate]:
    """Exports the model once for all peers; they load it, so the file goes again."""
    if not peers:
        return {}
    decode_peers = _beside("decode_peers")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "with_past.onnx"
        empty = decode_peers.export_with_past(model, path)
        return {peer: past_contender(decode_peers.STEPS[peer](path, threads), empty) for peer in peers}


def _beside(name: str) -> ModuleType:
    """Imports the file of that name beside this one: tools/ is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@click.command()
@click.option("--model", "names", multiple=True, type=click.Choice(NAMES), help="Repeat; all by default.")
@click.option("--tiny", is_flag=True, help="The small models of the tests.")
@click.option("--threads", default=1, show_default=True)
@click.option("--prompt", "prompt_length", default=16, show_default=True, help="Tokens of the prompt.")
@click.option("--tokens", "count", default=64, show_default=True, help="Tokens to decode.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--peers", default="onnxruntime,openvino", show_default=True, help="Separated by commas; may be empty.")
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(
    names: tuple[str, ...],
    tiny: bool,
    threads: int,
    prompt_length: int,
    count: int,
    rounds: int,
    peers: str,
    json_path: Path | None,
) -> None:
    """Time greedy decoding beside eager and other runtimes."""
    chosen = tuple(peer for peer in peers.split(",") if peer)
    unknown = [peer for peer in chosen if peer not in PEERS]
    if unknown:
        raise click.UsageError(f"there is no peer {unknown[0]!r}: {', '.join(PEERS)}")
    documents: list[dict[str, Any]] = []
    click.echo(
        f"{'model':8} {'contender':14} {'prompt ms':>10} {'ms/token':>10} {'tokens/s':>10} {'least':>9} {'most':>9}"
    )
    for name in names or NAMES:
        found = measure(
            name,
            tiny=tiny,
            threads=threads,
            prompt_length=prompt_length,
            count=count,
            rounds=rounds,
            peers=chosen,
        )
        documents.append(found)
        for who, timing in found["contenders"].items():
            figures = [timing["prompt_ms"], timing["ms_per_token"], timing["tokens_per_second"]]
            spread = f"{timing['slowest']:9.2f} {timing['fastest']:9.2f}"
            click.echo(f"{name:8} {who:14} " + " ".join(f"{figure:10.2f}" for figure in figures) + f" {spread}")
    if json_path is not None:
        json_path.write_text(json.dumps(documents, indent=2))


if __name__ == "__main__":
    main()
