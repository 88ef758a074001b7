"""Inference on a mesh that survives the death of a rank, and goes on with other ranks when nodes come or go.

torchrun --nproc-per-node 2 --max-restarts 3 docs/distributed/elastic_mesh.py FOLDER
torchrun --nnodes 1:2 --nproc-per-node 1 --max-restarts 3 ... docs/distributed/elastic_mesh.py FOLDER

FOLDER holds an artifact for each number of ranks, ``tp1.lk`` and ``tp2.lk``, and the requests, ``requests/*.npy``, one
array each; the results go to ``results``. A request whose result is there is not run again.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lowerkit.launching.join import join_launched


def answer(folder: Path, before_request: Callable[[int, int], None] = lambda number, ranks: None) -> int:
    """Runs all requests that have no results yet; returns how many.

    Args:
        folder: see above.
        before_request: called with the number of requests that this process has run, and the number of ranks.
    """
    (folder / "results").mkdir(exist_ok=True)
    # All ranks list before any of them writes a result: none of them runs before all have joined.
    names = sorted(path.name for path in (folder / "requests").glob("*.npy"))
    names = [name for name in names if not (folder / "results" / name).exists()]
    ranks = int(os.environ["WORLD_SIZE"])
    session = join_launched(folder / f"tp{ranks}.lk", deadline=60)
    for number, name in enumerate(names):
        before_request(number, ranks)
        (result, *_) = session.run(np.load(folder / "requests" / name))
        if int(os.environ["RANK"]) == 0:  # written beside it first: a rank may die at any time
            with (folder / "results" / "unfinished").open("wb") as file:
                np.save(file, result)
            (folder / "results" / "unfinished").rename(folder / "results" / name)
    return len(names)


if __name__ == "__main__":
    count = answer(Path(sys.argv[1]))
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {count} requests")
