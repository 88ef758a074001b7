"""A checkpoint that rank 0 of a training wrote, compiled for meshes of any size: the checkpoint knows no ranks.

torchrun --nproc-per-node 2 docs/distributed/mesh_checkpoint.py train checkpoint.pt
python docs/distributed/mesh_checkpoint.py compile checkpoint.pt tp=4 four.lk
lowerkit run four.lk --nproc 4 --input x:8x16:f32
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lowerkit


class Net(nn.Module):
    """Two layers of which a mesh splits the first by outputs and the second by inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns ``x: f32[n, 16]`` and what the layers add to it."""
        return x + self.down(torch.tanh(self.up(x)))


def train(path: Path, steps: int = 5) -> None:
    """Trains on all ranks of the default group; rank 0 writes the whole model."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 100 + dist.get_rank()))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.sin()).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()  # whoever goes on finds the file


def load(path: Path) -> Net:
    """Returns the model of a checkpoint."""
    model = Net().eval()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model


def compile_for(path: Path, mesh: str) -> lowerkit.Compiled:
    """Compiles the model of a checkpoint for a mesh, such as ``tp=4``."""
    plan = {"*.up": "column", "*.down": "row"}
    return lowerkit.compile(load(path), [torch.zeros(8, 16)], mesh=mesh, shard=plan)


if __name__ == "__main__":
    if sys.argv[1] == "train":
        dist.init_process_group("lowerkit")
        train(Path(sys.argv[2]))
        dist.destroy_process_group()
    else:
        compile_for(Path(sys.argv[2]), sys.argv[3]).save(sys.argv[4])
