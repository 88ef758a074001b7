"""Extents of one, where a coordinate is a plain number in the kernel: look-ups, writes by index, iteration numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit


class LooksUp(nn.Module):
    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x[:, places] * 2


class Adds(nn.Module):
    def forward(self, x: torch.Tensor, places: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        return torch.index_add(x, 1, places, updates)


class Numbers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(x.shape[0])[:, None] < 1, x, -x)


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
@pytest.mark.parametrize("columns", [1, 3])
def test_one_place(level: str, columns: int) -> None:
    x = torch.randn(6, columns)
    inputs = (x, torch.zeros(1, dtype=torch.int64))
    hold(LooksUp(), inputs, level)


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
@pytest.mark.parametrize("shape", [(3, 1, 16), (4, 1), (1, 1, 1)])
def test_writes_along_an_extent_of_one(level: str, shape: tuple[int, ...]) -> None:
    x, updates = torch.randn(shape), torch.randn(shape[0], 2, *shape[2:])
    hold(Adds(), (x, torch.zeros(2, dtype=torch.int64), updates), level)


@pytest.mark.parametrize("rows", [1, 2])
def test_the_number_of_an_iteration(rows: int) -> None:
    hold(Numbers(), (torch.randn(rows, 5),), "sm_80")


def hold(module: nn.Module, inputs: tuple[torch.Tensor, ...], level: str) -> None:
    compiled = lowerkit.compile(module.eval(), inputs, f"cuda:{level}", device="cuda-sim")
    (summary,) = compiled.offload
    assert summary.ops == summary.all_ops
    np.testing.assert_allclose(compiled(*inputs), module(*inputs).numpy(), rtol=1e-6, atol=1e-6)
