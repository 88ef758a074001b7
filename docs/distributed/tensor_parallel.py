"""DTensor over lowerkit, two layers split over ranks.

torchrun --nproc-per-node 2 docs/distributed/tensor_parallel.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def forward() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns outputs of a split model and of the same model on one rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
    inputs = torch.randn(3, 8)
    expected = model(inputs).detach()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model(inputs).detach(), expected


def reshard() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a tensor that went from rows to columns to one piece, and the original."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(56.0).reshape(8, 7)
    rows: DTensor = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    return columns.redistribute(mesh, [Replicate()]).to_local(), whole


if __name__ == "__main__":
    dist.init_process_group("lowerkit")
    outputs, expected = forward()
    print(f"rank {dist.get_rank()}: largest difference to one rank {float((outputs - expected).abs().max()):.1e}")
    dist.destroy_process_group()
