"""The model of the matrix, compiled for each mesh and for what is left of it, and with other weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import lowerkit

WIDTH = 24
BATCH = 4
ROWS = 8
"""Of the input of every run before the fault: the largest, so that no later one needs more memory between ranks."""
_TENSOR = {"*.up": "column", "*.down": "row"}
PLANS: dict[str, dict[str, Any]] = {
    mesh: {axis: {"input": "batch"} if axis == "dp" else _TENSOR for axis in axes} if len(axes) > 1 else _TENSOR
    for mesh in ("tp=2", "tp=3", "mp=3", "dp=2,tp=2", "tp=2,dp=2")
    for axes in [[axis.partition("=")[0] for axis in mesh.split(",")]]
}
"""By mesh."""
OTHER_MESH = {"tp=3": "mp=3", "dp=2,tp=2": "tp=2,dp=2"}
"""For each mesh of the matrix another one of as many ranks."""
LEFT = {2: "tp=2", 3: "tp=3", 4: "dp=2,tp=2"}
"""What so many ranks that are left run."""


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
    """The model as it was compiled, and what it gives.

    Attributes:
        of_mesh: the path for each mesh.
        others: for each mesh of the matrix the path of the same model with other weights.
        x, y: an input of ``ROWS`` rows and the model's output.
    """

    of_mesh: dict[str, str]
    others: dict[str, str]
    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]


def model(seed: int) -> nn.Module:
    """Returns two residual layers with random weights."""
    torch.manual_seed(seed)
    return nn.Sequential(Residual(), Residual()).eval()


def compile_artifacts(folder: Path) -> Artifacts:
    """Compiles the model for each mesh, for any number of rows."""
    x = torch.randn(BATCH, ROWS, WIDTH, generator=torch.Generator().manual_seed(3))
    rows = ({1: torch.export.Dim("rows", min=2, max=64)},)

    def compiled(mesh: str, name: str, seed: int = 1) -> str:
        path = folder / f"{name}.{mesh.replace('=', '')}.lk"
        lowerkit.compile(model(seed), (x,), dynamic_shapes=rows, mesh=mesh, shard=PLANS[mesh]).save(path)
        return str(path)

    with torch.no_grad():
        y = model(1)(x)
    return Artifacts(
        {mesh: compiled(mesh, "model") for mesh in PLANS},
        {mesh: compiled(mesh, "other", 2) for mesh in OTHER_MESH},
        x.numpy(),
        y.numpy(),
    )
