"""Training that survives the death of a worker, by elastic restarts of torchrun and a checkpoint.

torchrun --nproc-per-node 2 --max-restarts 2 docs/distributed/elastic.py FOLDER
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(folder: Path, steps: int = 12, after_step: Callable[[int], None] = lambda step: None) -> float:
    """Trains from the last checkpoint in ``folder`` on; returns the loss of all ranks after the last step.

    Args:
        folder: holds the checkpoint.
        steps: in all, those before a restart included.
        after_step: called with the number of steps that are done.
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkpoint, done, loss = folder / "checkpoint.pt", 0, torch.zeros(1)
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
    for step in range(done, steps):
        samples = torch.Generator().manual_seed(step)  # the same samples for any number of ranks, each its share
        inputs = torch.randn(12, 8, generator=samples).chunk(dist.get_world_size())[dist.get_rank()]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True).sin())
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:  # written beside it first: a worker may die at any time
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "done": step + 1}
            torch.save(state, folder / "checkpoint.new")
            (folder / "checkpoint.new").rename(checkpoint)
        dist.barrier()
        after_step(step + 1)
    total = loss.detach().clone()
    dist.all_reduce(total, dist.ReduceOp.AVG)
    return float(total)


if __name__ == "__main__":
    dist.init_process_group("lowerkit")
    final = train(Path(sys.argv[1]))
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {final:.6f}")
    dist.destroy_process_group()
