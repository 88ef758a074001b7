"""A collective as a step of a compiled program by each engine, beside the same call of its library, interleaved.

    mpirun -n 2 python tools/bench/collective/engine_step.py --turns 50

Programs and slopes are those of ``step.py``: a program with one all_reduce step and one with many more, of which the
difference is divided by the further operations. The bare calls are ``MPI.Comm.Allreduce`` and the all_reduce of a
ProcessGroupGloo, as often. Prints microseconds per operation, the slower rank's, medians over the turns.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from step import FEW, MANY, write_artifact

Run = Callable[[], object]


def sessions(folder: Path, size: int, world: Any) -> dict[str, dict[int, Run]]:
    """Returns by engine and number of operations what runs a program of them."""
    import torch.distributed as dist

    from lowerkit.distributed.gloo.ranks import GlooRanks
    from lowerkit.launching.loading import of_communicator
    from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
    from lowerkit.runtimes.mesh.ranks import join_mesh
    from lowerkit.runtimes.session import load

    path, rank, ranks = folder / f"{size}.lk", world.Get_rank(), world.Get_size()
    store = DirectoryStore(folder / "store")
    gloo = GlooRanks(dist.FileStore(str(folder / f"gloo{size}"), ranks), rank, ranks)  # pyright: ignore[reportPrivateImportUsage]
    ways = {"lowerkit": None, "mpi": of_communicator(world, 60.0).connect, "gloo": gloo.connect}
    x, found = np.zeros(size // 4, np.float32), dict[str, dict[int, Run]]()
    for name, connect in ways.items():
        first = join_mesh(path, store, rank, ranks, name=f"{name}{size}", threads=1, program=str(FEW), connect=connect)
        others = load(path, threads=1, program=str(MANY), group=first.group)
        found[name] = {FEW: lambda first=first: first.run(x), MANY: lambda others=others: others.run(x)}
    return found


def bare(folder: Path, size: int, world: Any) -> dict[str, dict[int, Run]]:
    """Returns by library and number of operations what makes the calls."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    rank, ranks = world.Get_rank(), world.Get_size()
    store = dist.FileStore(str(folder / f"bare{size}"), ranks)  # pyright: ignore[reportPrivateImportUsage]
    group: Any = dist.ProcessGroupGloo(store, rank, ranks, timeout=timedelta(seconds=60))
    x, y, tensor = np.zeros(size // 4, np.float32), np.zeros(size // 4, np.float32), torch.zeros(size // 4)

    def by_mpi(count: int) -> None:
        for _ in range(count):
            world.Allreduce(x, y)

    def by_gloo(count: int) -> None:
        for _ in range(count):
            group.allreduce([tensor]).wait()

    kinds = {"MPI alone": by_mpi, "gloo alone": by_gloo}
    return {
        name: {count: lambda call=call, count=count: call(count) for count in (FEW, MANY)}
        for name, call in kinds.items()
    }


@click.command()
@click.option("--turns", default=50, show_default=True)
@click.option("--sizes", default="16,65536,1048576", show_default=True, help="Bytes, comma-separated.")
def main(turns: int, sizes: str) -> None:
    """Time an all_reduce of f32 as a step, by engine; started by mpirun."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    temporary = tempfile.mkdtemp() if world.Get_rank() == 0 else ""
    folder = Path(world.bcast(temporary))
    for size in map(int, sizes.split(",")):
        if world.Get_rank() == 0:
            (folder / "store").mkdir(mode=0o700, exist_ok=True)
            write_artifact(folder / f"{size}.lk", size, world.Get_size())
        world.Barrier()
        kinds = {**sessions(folder, size, world), **bare(folder, size, world)}
        seconds: dict[tuple[str, int], list[float]] = {(name, count): [] for name in kinds for count in (FEW, MANY)}
        for turn in range(turns + 1):
            for name, runs in kinds.items():
                for count, run in runs.items():
                    world.Barrier()
                    started = time.perf_counter()
                    run()
                    taken = world.allreduce(time.perf_counter() - started, MPI.MAX)
                    if turn:
                        seconds[name, count].append(taken)
        if world.Get_rank() == 0:
            each = {
                name: (statistics.median(seconds[name, MANY]) - statistics.median(seconds[name, FEW])) / (MANY - FEW)
                for name in kinds
            }
            click.echo(f"{size:9} B   " + "   ".join(f"{name} {value * 1e6:.2f}" for name, value in each.items()))
    world.Barrier()
    if world.Get_rank() == 0:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
