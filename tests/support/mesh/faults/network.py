"""The model of the matrix and its artifacts: for three ranks, with other weights, for another axis, and for two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import lowerkit

WIDTH = 24
ROWS = 8
"""Of the input of every run before the fault: the largest, so that no later one needs more memory between ranks."""
PLAN = {"*.up": "column", "*.down": "row"}


class Residual(nn.Module):
    """``x + down(relu(up(x)))``."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


@dataclass(frozen=True)
class Artifacts:
    """Paths of the model as it was compiled, and what it gives.

    Attributes:
        three: for the mesh ``tp=3``.
        other: the same with other weights.
        axis: as ``three``, for the mesh ``mp=3``.
        two: for ``tp=2``: what two ranks that are left run.
        x, y: an input of ``ROWS`` rows and the model's output.
    """

    three: str
    other: str
    axis: str
    two: str
    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]


def model(seed: int) -> nn.Module:
    """Returns two residual layers with random weights."""
    torch.manual_seed(seed)
    return nn.Sequential(Residual(), Residual()).eval()


def compile_artifacts(folder: Path) -> Artifacts:
    """Compiles the model for each mesh, for any number of rows."""
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(3))
    paths: list[str] = []
    for name, seed, mesh in (("three", 1, "tp=3"), ("other", 2, "tp=3"), ("axis", 1, "mp=3"), ("two", 1, "tp=2")):
        compiled = lowerkit.compile(
            model(seed), (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=64)},), mesh=mesh, shard=PLAN
        )
        paths.append(str(folder / f"{name}.lk"))
        compiled.save(paths[-1])
    with torch.no_grad():
        y = model(1)(x)
    three, other, axis, two = paths
    return Artifacts(three, other, axis, two, x.numpy(), y.numpy())
