"""docs/distributed/mesh_checkpoint.py: trained on two ranks, written by rank 0, compiled for two ranks and for four."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lowerkit.runtimes.mesh.simulated import run_simulated
from tests.support.examples import example
from tests.support.mesh.processes import ROOT, finished

SCRIPT = str(ROOT / "docs/distributed/mesh_checkpoint.py")


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_in_meshes_of_two_and_four(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    code, _, err = finished(tmp_path, "train", path, command=(*torchrun, SCRIPT))
    assert code == 0, err
    module = example("mesh_checkpoint")
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected, untrained = module.load(path)(x).numpy(), module.Net()(x).numpy()
    assert np.abs(expected - untrained).max() > 0.1
    for ranks in (2, 4):
        module.compile_for(path, f"tp={ranks}").save(tmp_path / "model.lk")
        outputs = run_simulated(tmp_path / "model.lk", [x.numpy()])
        assert len(outputs) == ranks
        for (output,) in outputs:
            np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
