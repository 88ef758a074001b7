"""A pipeline of four stages: each rank has a quarter of the layers, and four micro-batches are under way at once.

    python pipeline.py        # compiles, starts four ranks on this machine, and compares with eager PyTorch

Each stage has steps and weights of its own in the one artifact; what a stage makes for the next one is a message.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import lowerkit

STAGES = 4
LAYERS = 8


def model() -> nn.Module:
    """Returns a chain of layers with a head."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(64, 10)).eval()


def main() -> None:
    """Compiles, runs and compares."""
    module, batch = model(), torch.randn(16, 64)
    plan = {str(layer): layer * STAGES // LAYERS for layer in range(LAYERS)} | {str(LAYERS): STAGES - 1}
    patterns = {f"{name}*": stage for name, stage in plan.items()}
    compiled = lowerkit.compile(module, [batch], mesh=f"pp={STAGES}", shard={**patterns, "micro-batches": 4})
    with tempfile.TemporaryDirectory() as folder:
        compiled.save(Path(folder) / "model.lk")
        np.save(Path(folder) / "batch.npy", batch.numpy())
        name = compiled.parts.program.signature.inputs[0].name
        command = [sys.executable, "-m", "lowerkit", "run", f"{folder}/model.lk", "--nproc", str(STAGES)]
        command += ["--input", f"{name}=@{folder}/batch.npy", "-o", f"{folder}/out"]
        subprocess.run(command, check=True, timeout=120)  # noqa: S603
        (output,) = Path(folder, "out").glob("*.npy")
        ours = np.load(output)
    with torch.no_grad():
        error = float(np.abs(ours - module(batch).numpy()).max())
    print(f"{STAGES} stages, 4 micro-batches: largest error {error:.1e}")
    assert error < 1e-5


if __name__ == "__main__":
    main()
