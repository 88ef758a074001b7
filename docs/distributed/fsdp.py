"""FSDP2 over lowerkit: every rank holds a part of each parameter.

torchrun --nproc-per-node 2 docs/distributed/fsdp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def train(steps: int = 3) -> list[torch.Tensor]:
    """Trains a small sharded model on each rank's batches; returns its whole parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 6))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        batch = torch.randn(4, 10, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        optimizer.zero_grad()
        model(batch).square().mean().backward()  # all_gather of parameters, reduce_scatter of gradients
        optimizer.step()
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


if __name__ == "__main__":
    dist.init_process_group("lowerkit")
    parameters = train()
    print(f"rank {dist.get_rank()}: sum of parameters {sum(float(one.sum()) for one in parameters):.6f}")
    dist.destroy_process_group()
