"""Synchronous SGD by hand over lowerkit.

torchrun --nproc-per-node 2 docs/distributed/sgd.py
"""

import torch
import torch.distributed as dist


def train(steps: int = 20) -> torch.Tensor:
    """Fits a line with each rank's own samples; returns the weights, equal on all ranks."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    truth = torch.tensor([2.0, -3.0, 0.5])
    weights = torch.zeros(3)
    for _ in range(steps):
        inputs = torch.randn(32, 3, generator=generator)
        gradient = inputs.t() @ (inputs @ weights - inputs @ truth) / 32
        dist.all_reduce(gradient, dist.ReduceOp.AVG)
        weights -= 0.3 * gradient
    return weights


if __name__ == "__main__":
    dist.init_process_group("lowerkit")
    print(f"rank {dist.get_rank()}: weights {[round(one, 4) for one in train().tolist()]}")
    dist.destroy_process_group()
