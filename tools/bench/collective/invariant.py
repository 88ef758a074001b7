"""What the same bits on every mesh cost: a model with and without ``--invariant``, interleaved, on 1, 2, ... ranks.

    python tools/bench/collective/invariant.py --model llama --ranks 1 --ranks 2 --turns 7

Prints for each number of ranks the median, least and largest time of a run in milliseconds, without and with, and the
ratio of the medians. First it runs the model on each mesh and says whether all gave the same bits.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.mesh.ranks import join_mesh
from lowerkit.runtimes.mesh.simulated import run_simulated
from lowerkit.spmd.sharding import sharding_of
from tests.support.models import benchmark_models

PLANS = {
    "gpt2": {"*.c_attn": "column", "*.attn.c_proj": "row", "*.c_fc": "column", "*.mlp.c_proj": "row"}
    | dict.fromkeys(["*.wte", "*.lm_head"], "vocabulary"),
    "llama": {"*.[qkv]_proj": "column", "*.gate_proj": "column", "*.up_proj": "column"}
    | {"*.o_proj": "row", "*.down_proj": "row", "*.embed_tokens": "vocabulary", "*.lm_head": "vocabulary"},
    "resnet50": {"*.layer.0.convolution": "column", "*.layer.1.convolution": "row", "*.layer.2.convolution": "column"},
}


def rank_process(
    path: Path, store: Path, rank: int, ranks: int, threads: int, inputs: list[Any], parent: Connection
) -> None:
    """One rank: as often as the parent says runs the model, and tells the milliseconds of each run."""
    session = join_mesh(path, DirectoryStore(store), rank, ranks, threads=threads)
    session.run(*inputs)
    parent.send("ready")
    while runs := parent.recv():
        found: list[float] = []
        for _ in range(runs):
            started = time.perf_counter()
            session.run(*inputs)
            found.append((time.perf_counter() - started) * 1e3)
        parent.send(found)


def compiled(name: str, inputs: Sequence[Any], ranks: int, invariant: bool, path: Path) -> str:
    """Compiles a full-size model for a mesh; returns what its line says."""
    module, _ = benchmark_models().full(name)
    program = capture(module, tuple(inputs))
    sharding = sharding_of(f"tp={ranks}", PLANS[name], program, invariant=invariant)
    made = compile_program(program, CompileOptions(golden=False, sharding=sharding))
    made.save(path)
    return made.sharding.render() if made.sharding else ""


def timed(
    paths: Sequence[Path], ranks: int, threads: int, inputs: list[Any], turns: int, runs: int, folder: Path
) -> list[list[float]]:
    """Runs artifacts for the same number of ranks by turns, each in processes of its own; returns each one's times."""
    context = multiprocessing.get_context("spawn")
    fleets: list[tuple[list[Any], list[Any]]] = []
    for number, path in enumerate(paths):
        store = folder / f"store{ranks}.{number}"
        store.mkdir(mode=0o700)
        pipes = [context.Pipe() for _ in range(ranks)]
        workers = [
            context.Process(target=rank_process, args=(path, store, rank, ranks, threads, inputs, pipe[1]))
            for rank, pipe in enumerate(pipes)
        ]
        for worker in workers:
            worker.start()
        for own, _ in pipes:
            own.recv()
        fleets.append((workers, [own for own, _ in pipes]))
    found: list[list[float]] = [[] for _ in paths]
    for _ in range(turns):
        for (_, pipes), times in zip(fleets, found, strict=True):
            for own in pipes:
                own.send(runs)
            times += [max(each) for each in zip(*(own.recv() for own in pipes), strict=True)]
    for workers, pipes in fleets:
        for own in pipes:
            own.send(0)
        for worker in workers:
            worker.join()
    return found


@click.command()
@click.option("--model", "name", type=click.Choice(list(PLANS)), default="llama", show_default=True)
@click.option("--ranks", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--tokens", default=64, show_default=True, help="Length of a text; 1 is a step of decoding.")
@click.option("--cores", default=2, show_default=True, help="Threads of all ranks together.")
@click.option("--turns", default=7, show_default=True)
@click.option("--runs", default=5, show_default=True, help="Runs of a turn.")
def main(name: str, ranks: Sequence[int], tokens: int, cores: int, turns: int, runs: int) -> None:
    """Time a model with and without --invariant."""
    example = [value if value.dim() > 2 else value[:, :tokens] for value in benchmark_models().full(name)[1]]
    inputs = [np.asarray(value) for value in example]
    bits: set[bytes] = set()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for count in ranks:
            paths = [folder / f"{way}.{count}.lk" for way in ("plain", "invariant")]
            for path, invariant in zip(paths, (False, True), strict=True):
                click.echo(f"{path.stem}: {compiled(name, example, count, invariant, path)}")
            bits.add(b"".join(array.tobytes() for array in run_simulated(paths[1], inputs)[0]))
            plain, same = timed(paths, count, max(1, cores // count), inputs, turns, runs, folder)
            for what, found in (("plain", plain), ("invariant", same)):
                spread = f"min {min(found):8.2f}   max {max(found):8.2f}"
                click.echo(f"tp={count} {what:10} median {statistics.median(found):8.2f} ms   {spread}")
            click.echo(f"tp={count} ratio of medians {statistics.median(same) / statistics.median(plain):.3f}")
    click.echo(f"the same bits for ranks {', '.join(map(str, ranks))}: {'yes' if len(bits) == 1 else 'NO'}")


if __name__ == "__main__":
    main()
