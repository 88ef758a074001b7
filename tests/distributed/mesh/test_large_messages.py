"""A compiled pipeline whose messages are too large to be buffered: no rank waits for ever, along any transport."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowerkit
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.session import load
from tests.distributed.mesh.test_message_processes import in_ranks

ROWS, WIDTH = 1024, 64  # 256 KiB: four times what a sender may send before there is a receive


class Skipping(nn.Module):
    """Each part but the first reads what all before it gave: a stage sends to every later one, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.relu(self.a(x))
        second = torch.relu(self.b(first))
        return self.c(first + second), first


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("pipeline") / "model.lk"
    plan = {"pp": {"a": 0, "b": 1, "c": 2}}
    lowerkit.compile(Skipping().eval(), (torch.randn(ROWS, WIDTH),), mesh="pp=3", shard=plan).save(path)
    return path


@pytest.mark.parametrize("shared_memory", [True, False])
def test_stages_pass_on_large_values_and_broadcast_them_back(shared_memory: bool, path: Path) -> None:
    torch.manual_seed(0)
    module, x = Skipping().eval(), torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        wanted = [value.numpy() for value in module(x)]

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        for _ in range(3):
            for own, other in zip(session.run(x.numpy()), wanted, strict=True):
                np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)

    assert in_ranks(3, run, shared_memory) == [None] * 3
