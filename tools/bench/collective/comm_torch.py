"""One rank of a benchmark through torch.distributed: lowerkit and Gloo in the same processes, turn by turn.

Started by comm.py under torchrun, or between network namespaces; prints one JSON object a line on rank 0. Turns and
rotation are those of comm_native.cpp. A sample is as many operations as the engine does in 20 ms, at most 100.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from lowerkit.distributed import Options

_ROTATED = 256 << 10
_POOL = 64 << 20
_SAMPLE = 0.02
_LONGEST_BATCH = 100


def operation_of(name: str, group: dist.ProcessGroup, size: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Returns what runs the operation from one tensor to another."""

    def all_reduce(source: torch.Tensor, target: torch.Tensor) -> None:
        dist.all_reduce(target, group=group)

    def broadcast(source: torch.Tensor, target: torch.Tensor) -> None:
        dist.broadcast(target, 0, group=group)

    def all_gather(source: torch.Tensor, target: torch.Tensor) -> None:
        each = target.numel() // size
        dist.all_gather_single(target[: each * size], source[:each], group=group)

    def reduce_scatter(source: torch.Tensor, target: torch.Tensor) -> None:
        each = source.numel() // size
        dist.reduce_scatter_single(target[:each], source[: each * size], group=group)

    def all_to_all(source: torch.Tensor, target: torch.Tensor) -> None:
        each = source.numel() // size
        dist.all_to_all_single(target[: each * size], source[: each * size], group=group)

    return {
        "all_reduce": all_reduce, "broadcast": broadcast, "all_gather": all_gather, "reduce_scatter": reduce_scatter,
        "all_to_all": all_to_all,
    }[name]  # fmt: skip


def check(group: dist.ProcessGroup, size: int) -> None:
    """Raises ValueError where an all_reduce gives anything but the sum."""
    for count in (1, 1000, 100_003):
        values = torch.arange(count, dtype=torch.float32) % 7 + dist.get_rank()
        expected = (torch.arange(count, dtype=torch.float32) % 7) * size + size * (size - 1) / 2
        dist.all_reduce(values, group=group)
        if not torch.equal(values, expected):
            raise ValueError(f"all_reduce of {count} elements is wrong")


def slowest(seconds: float) -> float:
    """Returns the time of the slowest rank."""
    spent = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return spent.item()


def batch_of(run: Callable[[torch.Tensor, torch.Tensor], None], source: torch.Tensor, target: torch.Tensor) -> int:
    """Returns how many operations make a sample."""
    spent = 0.0
    for _ in range(2):  # the first one warms up
        dist.barrier()
        start = time.perf_counter()
        run(source, target)
        spent = slowest(time.perf_counter() - start)
    return max(1, min(_LONGEST_BATCH, int(_SAMPLE / spent)))


def main() -> None:
    """Measures ``OPERATION SIZES TURNS shm|tcp``."""
    name, sizes, turns = sys.argv[1], [int(size) for size in sys.argv[2].split(",")], int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("lowerkit", pg_options=Options(shared_memory=sys.argv[4] == "shm"))
    size = dist.get_world_size()
    groups = {"lowerkit": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    engines = {}
    for engine, group in groups.items():
        assert isinstance(group, dist.ProcessGroup)
        check(group, size)
        engines[engine] = operation_of(name, group, size)
    for bytes_ in sizes:
        count = bytes_ // 4
        slots = 1 if bytes_ < _ROTATED else max(1, _POOL // bytes_)
        sources = [torch.zeros(count) for _ in range(slots)]
        targets = [torch.zeros(count) for _ in range(slots)]
        batches = {engine: batch_of(run, sources[0], targets[0]) for engine, run in engines.items()}
        samples: dict[str, list[float]] = {engine: [] for engine in engines}
        slot = 0
        for _ in range(turns):
            for engine, run in engines.items():
                dist.barrier()
                batch = batches[engine]
                for _ in range(batch):  # the other engine's threads have left, and each rank has a processor again
                    run(sources[slot], targets[slot])
                start = time.perf_counter()
                for _ in range(batch):
                    slot = (slot + 1) % slots
                    run(sources[slot], targets[slot])
                samples[engine].append(slowest((time.perf_counter() - start) / batch))
        if dist.get_rank() == 0:
            for engine, values in samples.items():
                line = {
                    "engine": f"torch {engine}",
                    "operation": name,
                    "ranks": size,
                    "bytes": bytes_,
                    "seconds": values,
                }
                print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
