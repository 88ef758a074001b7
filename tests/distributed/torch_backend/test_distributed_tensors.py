"""Modules of DTensors: their placements become the plan, on ranks that gather the parameters together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lowerkit
from lowerkit.capture.torch_export.distributed_tensors import undistributed
from lowerkit.errors import UnsupportedError
from tests.support.processes import run_processes
from tests.support.torch_groups import process_group


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.table(ids))))


def _compiled(rank: int, size: int, folder: str) -> tuple[str, dict[str, dict[str, str]], float, bool]:
    with process_group(rank, size, folder, backend="gloo"):
        torch.manual_seed(0)
        net = Net().eval()
        ids = torch.randint(0, 10, (2, 3))
        with torch.no_grad():
            wanted = net(ids).numpy()
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
        styles: dict[str, Any] = {
            "table": RowwiseParallel(input_layouts=Replicate()), "up": ColwiseParallel(), "down": RowwiseParallel()
        }  # fmt: skip
        parallelize_module(net, mesh, styles)
        found = undistributed(net)
        assert found is not None
        compiled = lowerkit.compile(net, [ids])
        with torch.no_grad():  # the user's module is as it was
            same = bool(np.allclose(net(ids).numpy(), wanted, atol=1e-5))
        return found.mesh, found.plan, float(np.abs(compiled(ids) - wanted).max()), same


def test_a_parallelized_module_brings_its_mesh_and_plan(tmp_path: Path) -> None:
    for mesh, plan, error, same in run_processes(_compiled, 2, str(tmp_path)):
        assert mesh == "tp=2"
        assert plan == {"tp": {"table": "vocabulary", "up": "column", "down": "row"}}
        assert error < 1e-5
        assert same


def _refused(rank: int, size: int, folder: str) -> str:
    with process_group(rank, size, folder, backend="gloo"):
        mesh = init_device_mesh("cpu", (size,))
        net = nn.LayerNorm(8)
        net.weight = nn.Parameter(distribute_tensor(net.weight.detach(), mesh, [Shard(0)]))
        with pytest.raises(UnsupportedError) as caught:
            lowerkit.compile(net, [torch.randn(2, 8)])
        return caught.value.message


def test_a_placement_that_no_plan_can_say(tmp_path: Path) -> None:
    for message in run_processes(_refused, 2, str(tmp_path)):
        assert "weight is " in message
        assert "along 'axis0'" in message
