"""Distributed checkpoints over lowerkit.

torchrun --nproc-per-node 2 docs/distributed/checkpoint.py FOLDER
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def sharded(seed: int) -> nn.Module:
    """Returns a sharded model with weights drawn from ``seed``."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, 14), nn.Linear(14, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def save_and_load(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Saves one model and loads it into another; returns both outputs."""
    saved, loaded = sharded(1), sharded(2)
    checkpoint.save(get_model_state_dict(saved), checkpoint_id=folder)
    state = get_model_state_dict(loaded)
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(loaded, state)
    inputs = torch.ones(2, 9)
    return saved(inputs).detach(), loaded(inputs).detach()


if __name__ == "__main__":
    dist.init_process_group("lowerkit")
    first, second = save_and_load(sys.argv[1])
    print(f"rank {dist.get_rank()}: equal outputs: {torch.equal(first, second)}")
    dist.destroy_process_group()
