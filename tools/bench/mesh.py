"""A model on the ranks of a mesh beside the same model on one device, with as many threads in all, interleaved.

    python tools/bench/mesh.py --model llama --ranks 2 --turns 7

Prints the median, least and largest time of a run in milliseconds, the share of a rank's time that its collectives
take, waiting for the others included, and the bytes of weights that a rank reads.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import models

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.mesh.ranks import join_mesh
from lowerkit.runtimes.session import Session, load
from lowerkit.spmd.sharding import sharding_of

PLANS = {
    "gpt2": {"*.c_attn": "column", "*.attn.c_proj": "row", "*.c_fc": "column", "*.mlp.c_proj": "row"}
    | dict.fromkeys(["*.wte", "*.lm_head"], "vocabulary"),
    "llama": {"*.[qkv]_proj": "column", "*.gate_proj": "column", "*.up_proj": "column"}
    | {"*.o_proj": "row", "*.down_proj": "row", "*.embed_tokens": "vocabulary", "*.lm_head": "vocabulary"},
}


def times(session: Session, inputs: list[Any], runs: int) -> list[float]:
    """Returns the milliseconds of each of ``runs`` runs."""
    found: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        session.run(*inputs)
        found.append((time.perf_counter() - started) * 1e3)
    return found


def rank_process(
    path: Path, store: Path, rank: int, ranks: int, inputs: list[Any], parent: Connection, threads: int = 1
) -> None:
    """One rank: runs as often as the parent asks, then tells the share of its collectives."""
    session = join_mesh(path, DirectoryStore(store), rank, ranks, threads=threads)
    session.run(*inputs)
    parent.send("ready")
    while runs := parent.recv():
        parent.send(times(session, inputs, runs))
    profile = session.profile(*inputs)
    own = sum(step.nanoseconds for step in profile if step.family == "collective")
    parent.send(own / sum(step.nanoseconds for step in profile))
    parent.recv()


def compiled(name: str, ranks: int, folder: Path) -> tuple[Path, str]:
    """Compiles a full-size model; returns the artifact, and of several ranks how it is split."""
    module, inputs = models.full(name)
    sharding = sharding_of(f"tp={ranks}", PLANS[name]) if ranks > 1 else None
    made = compile_program(capture(module, inputs), CompileOptions(golden=False, sharding=sharding))
    path = folder / f"{name}.{ranks}.lk"
    made.save(path)
    return path, made.sharding.render() if made.sharding else ""


@click.command()
@click.option("--model", "name", type=click.Choice(list(PLANS)), default="llama", show_default=True)
@click.option("--ranks", default=2, show_default=True)
@click.option("--turns", default=7, show_default=True)
@click.option("--runs", default=5, show_default=True, help="Runs of a turn.")
def main(name: str, ranks: int, turns: int, runs: int) -> None:
    """Time NAME on a mesh and on one device."""
    inputs = [np.asarray(value) for value in models.full(name)[1]]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (one, _), (mesh, split) = compiled(name, 1, folder), compiled(name, ranks, folder)
        session = load(one, threads=ranks)
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(ranks)]
        (folder / "store").mkdir(mode=0o700)
        workers = [
            context.Process(target=rank_process, args=(mesh, folder / "store", rank, ranks, inputs, pipe[1]))
            for rank, pipe in enumerate(pipes)
        ]
        for worker in workers:
            worker.start()
        for own, _ in pipes:
            own.recv()
        session.run(*inputs)
        alone: list[float] = []
        together: list[float] = []
        for _ in range(turns):
            alone += times(session, inputs, runs)
            for own, _ in pipes:
                own.send(runs)
            slowest = zip(*(own.recv() for own, _ in pipes), strict=True)
            together += [max(each) for each in slowest]
        for own, _ in pipes:
            own.send(0)
        shares = [own.recv() for own, _ in pipes]
        for own, _ in pipes:
            own.send("end")
        for worker in workers:
            worker.join()
    click.echo(f"{name}, inputs {[list(value.shape) for value in inputs]}: {split}")
    for what, found in ((f"one device, {ranks} threads", alone), (f"{ranks} ranks, a thread each", together)):
        spread = f"min {min(found):8.2f}   max {max(found):8.2f}"
        click.echo(f"{what:26} median {statistics.median(found):8.2f} ms   {spread}")
    click.echo(f"ratio of medians {statistics.median(together) / statistics.median(alone):.2f}")
    click.echo(f"collectives, of a rank's time: {', '.join(f'{share:.0%}' for share in shares)}")


if __name__ == "__main__":
    main()
