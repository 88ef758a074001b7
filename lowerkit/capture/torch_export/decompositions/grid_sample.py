"""``grid_sample``: PyTorch's own decomposition, and what eager makes of coordinates that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import global_decomposition_table

from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.dims import is_static

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1
"""PyTorch's numbers; 2 is a reflection."""


def _grid_sampler_2d(
    value: Tensor, grid: Tensor, mode: int = 0, padding: int = 0, align_corners: bool = False
) -> Tensor:
    """Cubic samples, and the nearest beside zeros, come out right by themselves.

    Beside zeros, weights of no number are NaN. At a border NaN is the first element; in reflections, whose distance is
    a remainder, an infinity is it too.
    """
    sample = global_decomposition_table["post_autograd"][aten.grid_sampler_2d.default]
    if padding == _ZEROS and mode == _BILINEAR:
        finite = torch.isfinite(grid).all(-1).unsqueeze(1)
        return torch.where(finite, sample(value, grid, mode, padding, align_corners), torch.nan)
    if padding != _ZEROS and mode in (_BILINEAR, _NEAREST) and all(map(is_static, value.shape[2:])):
        height, width = value.shape[2:]
        lost = torch.isnan(grid) if padding == _BORDER else ~torch.isfinite(grid)
        first = [-1.0 if align_corners else 1 / extent - 1 for extent in (width, height)]
        places = (torch.where(lost[..., axis], number, grid[..., axis]) for axis, number in enumerate(first))
        grid = torch.stack(list(places), -1)
    return sample(value, grid, mode, padding, align_corners)


TABLE: dict[Any, Callable[..., Any]] = {aten.grid_sampler_2d.default: _grid_sampler_2d}
"""By overload."""
