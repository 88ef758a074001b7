"""grid_sample in all its modes, images of one row or column included, against eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import lowerkit

SHAPES = ((2, 1, 3, 4), (1, 2, 1, 4), (1, 1, 5, 1))


class _Sample(torch.nn.Module):
    def __init__(self, mode: str, padding: str, align_corners: bool) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}

    def forward(self, grid: torch.Tensor, *images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(functional.grid_sample(x, grid[: len(x)], **self.options) for x in images)


@pytest.mark.parametrize("align_corners", [False, True], ids=["edges", "corners"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_samples_as_eager_does(mode: str, padding: str, align_corners: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    images = [torch.randn(shape, generator=generator) for shape in SHAPES]
    grid = torch.rand(2, 4, 5, 2, generator=generator) * 5 - 2.5
    module = _Sample(mode, padding, align_corners)
    for found, wanted in zip(
        lowerkit.compile(module, (grid, *images))(grid, *images), module(grid, *images), strict=True
    ):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)
