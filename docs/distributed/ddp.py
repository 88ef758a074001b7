"""DistributedDataParallel over lowerkit, with a DistributedSampler.

torchrun --nproc-per-node 2 docs/distributed/ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(epochs: int = 2) -> list[torch.Tensor]:
    """Trains a small classifier on every rank's share of the data; returns its parameters."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()  # averages gradients over the ranks
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


if __name__ == "__main__":
    dist.init_process_group("lowerkit")
    parameters = train()
    print(f"rank {dist.get_rank()}: sum of parameters {sum(float(one.sum()) for one in parameters):.6f}")
    dist.destroy_process_group()
