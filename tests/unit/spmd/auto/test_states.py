"""Caches weigh on the module that reads them: a stage holds those of its layers."""

from __future__ import annotations

import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.spmd.auto.draft import draft_of
from lowerkit.spmd.auto.trial import Machine
from lowerkit.spmd.cost.machine import DeviceModel, LinkModel, Links


class Layer(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8, bias=False)
        self.register_buffer("cache", torch.zeros(rows, 8))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.get_buffer("cache").index_copy_(0, at, self.up(x))
        return self.get_buffer("cache").sum(0, keepdim=True)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Layer(4), Layer(6)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(x, at), at)


def test_loads_count_caches() -> None:
    program = capture(Two().eval(), (torch.randn(1, 8), torch.tensor([2])))
    machine = Machine(DeviceModel(flops=1e12, bandwidth=1e11, memory=1 << 20), Links(LinkModel(1e9, 1e-6)), {})
    loads = draft_of(program, machine).trial.loads()
    held = {name: sum(own for path, (_, own) in loads.items() if path.startswith(name)) for name in ("one", "other")}
    weight = 8 * 8 * 4
    assert held == {"one": weight + 4 * 8 * 4, "other": weight + 6 * 8 * 4}
