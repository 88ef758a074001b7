"""A model whose weights are more than a rank may map: refused on one rank, and run by four, each with its part.

    python beyond_memory.py   # compiles, runs under the limit on this machine, and compares with eager PyTorch

The limit is RLIMIT_AS, all that a process maps: code, stacks and weights. A rank maps its own parts of the weights, and
one of a pipeline those of its stage.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import lowerkit

WIDTH, HIDDEN, BLOCKS = 4096, 6144, 2
LIMIT = "400MB"
SPLIT = {"*.up": "column", "*.down": "row"}
STAGES = {f"{block}.*": block for block in range(BLOCKS)}


class Block(nn.Module):
    """Two products with 201 MB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns ``x: f32[n, WIDTH]`` and what the products add to it."""
        return x + self.down(nn.functional.gelu(self.up(x)))


def run(folder: Path, model: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs an artifact under the limit, which holds for each rank."""
    command = [sys.executable, "-m", "lowerkit", "run", f"{folder}/{model}.lk", "--memory-limit", LIMIT, *options]
    command += ["--threads", "1", "--input", f"input=@{folder}/batch.npy", "-o", f"{folder}/{model}"]
    # Threads of numpy's own take address space, too: their stacks and buffers.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)  # noqa: S603


def main() -> None:
    """Compiles, runs and compares."""
    torch.manual_seed(0)
    module = nn.Sequential(*(Block() for _ in range(BLOCKS))).eval()
    batch = torch.randn(4, WIDTH)
    size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
    with torch.no_grad():
        expected = module(batch).numpy()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "batch.npy", batch.numpy())
        lowerkit.compile(module, [batch]).save(folder / "one.lk")
        refused = run(folder, "one")
        assert refused.returncode == 7, refused.stderr
        print(f"{size / 1e6:.0f} MB of weights, {LIMIT} for a rank. One rank:\n{refused.stderr.rstrip()}")
        plans = {"tp=4": SPLIT, "tp=2,pp=2": {"tp": SPLIT, "pp": STAGES}}
        for number, (mesh, plan) in enumerate(plans.items()):
            lowerkit.compile(module, [batch], mesh=mesh, shard=plan).save(folder / f"{number}.lk")
            done = run(folder, str(number), "--nproc", "4")
            assert done.returncode == 0, done.stderr
            error = float(np.abs(np.load(folder / str(number) / "output.npy") - expected).max())
            print(f"{mesh}: largest error {error:.1e}")
            assert error < 1e-5


if __name__ == "__main__":
    main()
