"""Ranks that are processes keep their parts of a state in a folder, and take up from there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from tests.support.mesh.processes import finished

PLAN = {"key": "column", "out": "row"}


class Decoder(nn.Module):
    """A cache of four heads that starts from data; each run sets one of its six positions."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(8, 8, bias=False)
        self.out = nn.Linear(8, 8, bias=False)
        self.register_buffer("cache", torch.arange(48.0).reshape(4, 6, 2) / 48)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.get_buffer("cache").index_copy_(1, at, self.key(x).reshape(4, 1, 2))
        return self.out(self.get_buffer("cache").sum(1).reshape(1, 8))


@pytest.fixture(scope="module")
def model() -> Decoder:
    return Decoder().eval()


def saved(model: Decoder, path: Path, mesh: str) -> Path:
    lowerkit.compile(model, (torch.randn(1, 8), torch.tensor([3])), mesh=mesh, shard=PLAN).save(path)
    return path


def test_each_rank_keeps_its_part(model: Decoder, tmp_path: Path) -> None:
    path, states = saved(model, tmp_path / "two.lk", "tp=2"), tmp_path / "states"
    tokens = np.random.default_rng(3).standard_normal((2, 1, 8)).astype(np.float32)
    wanted = model.get_buffer("cache").numpy().copy()
    given = ["--input", f"x=@{tmp_path / 'x.npy'}", "--input", f"at=@{tmp_path / 'at.npy'}"]
    for position, token in enumerate(tokens):
        np.save(tmp_path / "x.npy", token)
        np.save(tmp_path / "at.npy", np.array([position]))
        code, _, err = finished(tmp_path, "run", path, "--nproc", 2, *given, "--state", states, "-o", tmp_path)
        assert code == 0, err
        with torch.no_grad():
            wanted[:, position] = model.key(torch.from_numpy(token)).reshape(4, 2).numpy()
            result = model.out(torch.from_numpy(wanted).sum(1).reshape(1, 8)).numpy()
        np.testing.assert_allclose(np.load(tmp_path / "output.npy"), result, rtol=1e-4, atol=1e-5)
        parts = [np.load(states / f"rank{rank}" / "cache.npy") for rank in range(2)]
        assert [part.shape for part in parts] == [(2, 6, 2), (2, 6, 2)]
        np.testing.assert_allclose(np.concatenate(parts), wanted, rtol=1e-5, atol=1e-6)
    other = saved(model, tmp_path / "other.lk", "tp2=2")
    code, _, err = finished(tmp_path, "run", other, "--nproc", 2, *given, "--state", states)
    assert code == 3
    # Each rank refuses its own; one that starts seconds after the other may be ended before it does.
    refusal = "rank[01] holds states of tp=2, cut dim 0 in 2 along tp, and the artifact keeps them of tp2=2"
    assert re.search(refusal, err), err
    (states / "rank1" / "parts.json").unlink()
    code, _, err = finished(tmp_path, "run", path, "--nproc", 2, *given, "--state", states)
    assert code == 3 and "rank1 holds states of a mesh that is not named" in err, err
