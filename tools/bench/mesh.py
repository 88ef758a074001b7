"""A model on the ranks of a mesh beside the same model on one device, with as many threads in all, interleaved.

    python tools/bench/mesh.py --model llama --tokens 128 --peer dtensor --turns 7
    python tools/bench/mesh.py --model vit_b16 --peer dtensor --turns 7

Prints the median, least and largest time of a run in milliseconds, the share of a rank's time that its collectives
take, waiting for the others included, and the bytes of weights that a rank reads. ``--peer dtensor`` runs the model
under DTensor as well (parallelize_module with the same plan, gloo, as many processes of one thread), in the same turns;
its outputs and ours are compared.
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import models
from collective import dtensor_rank, workers

PLANS: Mapping[str, Mapping[str, str]] = {
    "gpt2": {"*.c_attn": "column", "*.attn.c_proj": "row", "*.c_fc": "column", "*.mlp.c_proj": "row"}
    | dict.fromkeys(["*.wte", "*.lm_head"], "vocabulary"),
    "llama": {"*.[qkv]_proj": "column", "*.gate_proj": "column", "*.up_proj": "column"}
    | {"*.o_proj": "row", "*.down_proj": "row", "*.embed_tokens": "vocabulary", "*.lm_head": "vocabulary"},
    "vit_b16": {"*.[qkv]_proj": "column", "*.o_proj": "row", "*.fc1": "column", "*.fc2": "row"},
}
DEFAULT_TOKENS = 64


def model_inputs(name: str, tokens: int) -> tuple[Any, ...]:
    """Returns random inputs; a text has ``tokens`` tokens."""
    import torch

    (inputs,) = models.example_inputs(name)
    if inputs.dtype != torch.int64 or tokens == inputs.shape[1]:
        return (inputs,)
    generator = torch.Generator().manual_seed(models.SEED)
    return (torch.randint(int(inputs.max()), (inputs.shape[0], tokens), generator=generator),)


def compiled(name: str, ranks: int, folder: Path, tokens: int = DEFAULT_TOKENS) -> tuple[Path, str]:
    """Compiles a full-size model; returns the artifact, and of several ranks how it is split."""
    from lowerkit.capture.capture import capture
    from lowerkit.compiler import CompileOptions, compile_program
    from lowerkit.spmd.sharding import sharding_of

    module, _ = models.full(name)
    sharding = sharding_of(f"tp={ranks}", dict(PLANS[name])) if ranks > 1 else None
    options = CompileOptions(golden=False, sharding=sharding)
    made = compile_program(capture(module, model_inputs(name, tokens)), options)
    path = folder / f"{name}.{ranks}.lk"
    made.save(path)
    return path, made.sharding.render() if made.sharding else ""


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@click.command()
@click.option("--model", "name", type=click.Choice(list(PLANS)), default="llama", show_default=True)
@click.option("--tokens", default=DEFAULT_TOKENS, show_default=True, help="Of the input of gpt2 and llama.")
@click.option("--ranks", default=2, show_default=True)
@click.option("--peer", type=click.Choice(["dtensor"]), help="What else runs the model, in the same turns.")
@click.option("--turns", default=7, show_default=True)
@click.option("--runs", default=5, show_default=True, help="Runs of a turn.")
def main(name: str, tokens: int, ranks: int, peer: str | None, turns: int, runs: int) -> None:
    """Time NAME on a mesh and on one device."""
    from lowerkit.runtimes.session import load

    inputs = [np.asarray(value) for value in model_inputs(name, tokens)]
    alone: list[float] = []
    together: list[float] = []
    beside: list[float] = []
    with tempfile.TemporaryDirectory() as text, ExitStack() as stack:
        folder = Path(text)
        (one, _), (mesh, split) = compiled(name, 1, folder, tokens), compiled(name, ranks, folder, tokens)
        (folder / "store").mkdir(mode=0o700)
        session = load(one, threads=ranks)
        expected = session.run(*inputs)
        own = stack.enter_context(workers.workers(ranks, workers.mesh_rank, mesh, folder / "store", ranks))
        other: workers.Workers | None = None
        if peer is not None:
            arguments = (name, PLANS[name], ranks, free_port())
            other = stack.enter_context(workers.workers(ranks, dtensor_peer, *arguments))
            for who, asked in (("mesh", own), ("DTensor", other)):
                gap = dtensor_rank.largest_difference(asked.ask(run_once, inputs)[0], expected)
                click.echo(f"largest difference of {who} from one device: {gap:.1e} of the largest output")
        own.ask(workers.times, inputs, 1)
        for _ in range(turns):
            alone += workers.times(session, inputs, runs)
            together += workers.slowest(own.ask(workers.times, inputs, runs))
            if other is not None:
                beside += workers.slowest(other.ask(workers.times, inputs, runs))
        shares = own.ask(workers.collective_share, inputs)
    click.echo(f"{name}, inputs {[list(value.shape) for value in inputs]}: {split}")
    lines = {f"one device, {ranks} threads": alone, f"{ranks} ranks, a thread each": together}
    if peer is not None:
        lines[f"DTensor and gloo, {ranks} ranks"] = beside
    for what, found in lines.items():
        spread = f"min {min(found):8.2f}   max {max(found):8.2f}"
        click.echo(f"{what:26} median {statistics.median(found):8.2f} ms   {spread}")
    click.echo(f"ratio of medians {statistics.median(together) / statistics.median(alone):.2f}")
    if peer is not None:
        click.echo(f"DTensor and gloo take {statistics.median(beside) / statistics.median(together):.2f} times ours")
    click.echo(f"collectives, of a rank's time: {', '.join(f'{share:.0%}' for share in shares)}")


def dtensor_peer(rank: int, name: str, plan: Mapping[str, str], ranks: int, port: int) -> dtensor_rank.DTensorRank:
    """Makes a rank of the model under DTensor."""
    return dtensor_rank.DTensorRank(rank, models.full(name)[0], plan, ranks, port)


def run_once(session: Any, inputs: list[Any]) -> list[Any]:
    """Returns the outputs of one run."""
    return session.run(*inputs)


if __name__ == "__main__":
    main()
