"""A checkpoint that rank 0 writes of a module on one mesh, compiled for another one.

    torchrun --nproc-per-node 2 other_mesh.py

Two ranks hold a module as DTensors (tp=2). Rank 0 writes the whole state; whoever loads it compiles for the mesh that
there is, here tp=4, in this process.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lowerkit


def model() -> nn.Module:
    """Returns two layers."""
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).eval()


def main() -> None:
    """Writes the checkpoint on two ranks; rank 0 loads it for four."""
    dist.init_process_group("lowerkit")
    torch.manual_seed(0)
    module, x = model(), torch.randn(3, 16)
    with torch.no_grad():
        wanted = module(x).numpy()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    state = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))  # whole on rank 0 alone
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state, Path(folder) / "checkpoint.pt")
            loaded = model()
            loaded.load_state_dict(torch.load(Path(folder) / "checkpoint.pt", weights_only=True))
        compiled = lowerkit.compile(loaded, [x], mesh="tp=4", shard={"0": "column", "2": "row"})
        error = float(np.abs(compiled(x) - wanted).max())
        assert compiled.sharding is not None
        print(f"{compiled.sharding.render()}; largest error {error:.1e}")
        assert error < 1e-5
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
