"""One rank of a model under DTensor over gloo: the peer of a compiled mesh, on the same weights with the same plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn


class DTensorRank:
    """The model of this rank, with parameters that are DTensors; ``run`` is one forward."""

    def __init__(self, rank: int, module: nn.Module, plan: Mapping[str, str], ranks: int, port: int) -> None:
        """Splits the weights of ``module``, which is whole on each of ``ranks`` ranks; they meet at a local port."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import TCPStore
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import parallelize_module

        torch.set_num_threads(1)
        store = TCPStore("127.0.0.1", port, ranks, rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        self.module = parallelize_module(module, init_device_mesh("cpu", (ranks,)), styles_of(module, plan))

    def run(self, *inputs: Any) -> list[Any]:
        """Runs the model once; every rank has its outputs whole."""
        with torch.no_grad():
            return [self.module(*(torch.from_numpy(value) for value in inputs)).numpy()]


def styles_of(module: nn.Module, plan: Mapping[str, str]) -> dict[str, Any]:
    """Returns the style of each module that a plan for --shard names.

    Raises:
        ValueError: DTensor's styles are for nn.Linear and nn.Embedding, and the plan names something else.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    styles: dict[str, Any] = {}
    for name, part in module.named_modules():
        choice = next((choice for pattern, choice in plan.items() if fnmatchcase(f".{name}", pattern)), None)
        if choice is None or choice == "replicate" or not _has_weight(part):
            continue
        match choice, part:
            case "column", nn.Linear():
                styles[name] = ColwiseParallel()
            case "row", nn.Linear():
                styles[name] = RowwiseParallel()
            case "vocabulary", nn.Embedding():
                styles[name] = RowwiseParallel(input_layouts=Replicate())
            case "vocabulary", nn.Linear():
                styles[name] = ColwiseParallel(output_layouts=Replicate())
            case _:
                raise ValueError(f"DTensor has no style for {name!r}, a {type(part).__name__} to be split by {choice}")
    return styles


def _has_weight(part: nn.Module) -> bool:
    return any(True for _ in part.parameters(recurse=False))


def largest_difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Returns how far two sets of outputs are from each other, relative to the largest value of the second."""
    return max(float(abs(left - right).max()) / float(abs(right).max()) for left, right in zip(one, other, strict=True))
