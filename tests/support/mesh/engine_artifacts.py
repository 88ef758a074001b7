"""The artifacts that ranks load whose collectives are carried out by another library's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import lowerkit
from tests.support.mesh.artifacts import write_mesh, write_one_rank
from tests.support.mesh.collective_programs import CALLS, one_collective, write_collectives, write_programs
from tests.support.mesh.engine_ranks import LONG
from tests.support.mesh.messages import one_message, ring
from tests.support.mesh.several_axes import at_once, looked_up, write_axes, write_gathered


def write_all(folder: Path, size: int) -> None:
    """Writes the artifacts that the functions load."""
    for operation, reduction in CALLS:
        write_collectives(folder, operation, reduction, size)
    write_mesh(folder / "sum.lk", size)
    write_mesh(folder / "other.lk", size, producer={"lowerkit": "other"})
    write_mesh(folder / "more.lk", size + 1)
    write_one_rank(folder / "one.lk")
    for count in (3, LONG):
        for behind in (False, True):
            write_programs(folder / f"ring.{count}.{behind}.lk", ring({"pp": size}, "pp", count, behind=behind))
    for sent, received in ((8, 16), (16, 8)):
        write_programs(folder / f"message.{sent}.lk", one_message({"pp": size}, "pp", sent, received))
    write_programs(folder / "any.lk", [one_collective("all_reduce", "sum", "f32", size, behind=True)])
    write_axes(folder / "looked_up.lk", [looked_up({"tp": size})])
    if size == 4:
        write_gathered(folder / "gathered.lk", {"dp": 2, "tp": 2}, ("tp", "dp"))
        write_axes(folder / "at_once.lk", [at_once({"dp": 2, "tp": 2}, LONG)])
        write_axes(folder / "looked_up_axes.lk", [looked_up({"dp": 2, "tp": 2})])


class Layers(torch.nn.Module):
    """Two layers that are split along their outputs and then their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.ModuleDict({"up": torch.nn.Linear(16, 32), "down": torch.nn.Linear(32, 16)})
        self.second = torch.nn.ModuleDict({"up": torch.nn.Linear(16, 32), "down": torch.nn.Linear(32, 16)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            x = x + layer["down"](torch.relu(layer["up"](x)))
        return x


def write_model(folder: Path, size: int) -> None:
    """Compiles a model for ``tp=2``, or ``tp=2,pp=2``, and writes an input and what PyTorch gives for it."""
    torch.manual_seed(3)
    module, x = Layers().eval(), torch.randn(4, 16)
    plan: dict[str, Any] = {"*.up": "column", "*.down": "row"}
    if size == 4:
        plan = {"tp": plan, "pp": {"*first*": 0, "*second*": 1}}
    lowerkit.compile(module, (x,), mesh="tp=2,pp=2" if size == 4 else "tp=2", shard=plan).save(folder / "model.lk")
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "y.npy", module(x).detach().numpy())
