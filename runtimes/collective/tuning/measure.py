"""Times all_reduce under several tunings at once: one process for each rank, rounds of all candidates interleaved.

``python -m lowerkit.runtimes.collective.tuning.measure JSON`` is the program of one rank; :func:`measure_here` starts
them. The time of an operation is the most that any rank took for it. Large results are read once, within that time, as
callers do: an output that passed the caches by is not cheap for whoever needs it next.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from lowerkit.errors import ResourceError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.rendezvous import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.collective.tuning.table import Tuning, TuningTable, processor_name, processors

_BATCH_SECONDS = 0.001  # a timed batch of operations takes about so long, so that the clock costs nothing
_MOST_BATCH = 50
_LEAST_ROUNDS = 5
_READ_BYTES = 1 << 20
_START_SECONDS = 60.0


def measure_here(
    candidates: Sequence[Tuning], ranks: int, sizes: Sequence[int], seconds: float
) -> list[dict[int, float]]:
    """Returns, for each candidate, the median seconds of an all_reduce (sum, float32) by size in bytes.

    From 1 MiB on that includes reading the result.

    Args:
        candidates: tunings to compare.
        ranks: processes to start on this host.
        sizes: bytes, multiples of 4.
        seconds: how long to measure, at least; five rounds are run in any case.

    Raises:
        ResourceError: LK7003, a rank failed; its own output says why.
    """
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="lowerkit-tune-") as folder:
        try:
            for rank in range(ranks):
                given = {
                    "store": str(Path(folder) / "store"), "rank": rank, "ranks": ranks, "sizes": list(sizes),
                    "seconds": seconds, "candidates": [msgspec.to_builtins(one) for one in candidates],
                }  # fmt: skip
                command = [sys.executable, "-m", "lowerkit.runtimes.collective.tuning.measure", json.dumps(given)]
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))  # noqa: S603 -- ourselves
            outputs = [process.communicate()[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    if failed:
        raise ResourceError("LK7003", f"measuring with {ranks} ranks failed on ranks {failed}")
    return [{int(size): float(median) for size, median in one.items()} for one in json.loads(outputs[0])]


def run_rank(given: Mapping[str, object]) -> list[dict[int, float]]:
    """Runs one rank, as :func:`measure_here` specifies it. Returns the medians, the same on each."""
    candidates = msgspec.convert(given["candidates"], list[Tuning])
    sizes = msgspec.convert(given["sizes"], list[int])
    rank, ranks = msgspec.convert(given["rank"], int), msgspec.convert(given["ranks"], int)
    seconds = msgspec.convert(given["seconds"], float)
    store = DirectoryStore(str(given["store"]))
    options = RendezvousOptions(timeout=_START_SECONDS)

    def join(name: str, tuning: Tuning) -> Group:
        table = TuningTable(processor_name(), processors(), {ranks: tuning}, "a candidate")
        return Group.join(store, name, rank, ranks, options, timeout=_START_SECONDS, tuning=table)

    groups = [join(f"candidate {number}", tuning) for number, tuning in enumerate(candidates)]
    # Decides for all ranks alike how long a batch is and when it is over.
    clock = join("clock", Tuning())
    samples: dict[tuple[int, int], list[float]] = {(one, size): [] for one in range(len(groups)) for size in sizes}
    arrays = {size: (np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)) for size in sizes}
    batches = dict.fromkeys(sizes, 1)
    end = time.perf_counter() + seconds
    counted = -1  # the first round warms up, and says how long a batch is
    while counted < _LEAST_ROUNDS or _agreed(clock, time.perf_counter() < end):
        for step in range(len(groups)):
            one = (counted + step) % len(groups)
            for size in sizes:
                samples[one, size].append(_time_batch(groups[one], *arrays[size], batches[size]))
        if counted < 0:
            for size in sizes:
                slowest = _most(clock, [max(samples[one, size][0] for one in range(len(groups)))])[0]
                batches[size] = max(1, min(_MOST_BATCH, int(_BATCH_SECONDS / slowest)))
            samples = {key: [] for key in samples}
        counted += 1
    keys = sorted(samples)
    most = iter(_most(clock, [value for key in keys for value in samples[key]]))
    medians = {key: statistics.median([next(most) for _ in samples[key]]) for key in keys}
    for group in (*groups, clock):
        group.close()
    return [{size: medians[one, size] for size in sizes} for one in range(len(groups))]


def _time_batch(group: Group, array: np.ndarray, output: np.ndarray, batch: int) -> float:
    call = group.calls.all_reduce(array, output=output)
    group.run(group.calls.barrier())
    started = time.perf_counter()
    for _ in range(batch):
        group.run(call)
        if output.nbytes >= _READ_BYTES:
            output.max()
    return (time.perf_counter() - started) / batch


def _agreed(clock: Group, own: bool) -> bool:
    return bool(clock.run(clock.calls.broadcast(np.array([own])))[0])


def _most(clock: Group, own: list[float]) -> list[float]:
    return clock.run(clock.calls.all_reduce(np.array(own), "max")).tolist()


if __name__ == "__main__":
    print(json.dumps(run_rank(json.loads(sys.argv[1]))))  # noqa: T201 -- its output is what the parent reads
