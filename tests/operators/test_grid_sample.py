"""grid_sample in all its modes, images of one row or column included, against eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import lowerkit


class _Sample(torch.nn.Module):
    def __init__(self, mode: str, padding: str, align_corners: bool) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return functional.grid_sample(x, grid, **self.options)


@pytest.mark.parametrize("align_corners", [False, True], ids=["edges", "corners"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (1, 2, 1, 4), (1, 1, 5, 1)], ids=str)
def test_samples_as_eager_does(shape: tuple[int, ...], mode: str, padding: str, align_corners: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator)
    grid = torch.rand(shape[0], 4, 5, 2, generator=generator) * 5 - 2.5
    module = _Sample(mode, padding, align_corners)
    found: Any = lowerkit.compile(module, (x, grid))(x, grid)
    np.testing.assert_allclose(np.asarray(found), module(x, grid).numpy(), rtol=1e-4, atol=1e-5)
