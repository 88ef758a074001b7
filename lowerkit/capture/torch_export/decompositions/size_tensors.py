"""What spelled-out operators of symbolic sizes share: sizes as tensors, positions, inputs of their axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.dims import is_static

Extent = Any
"""An int, or the symbolic one that torch calls an int too."""


def is_symbolic(extents: Sequence[Extent]) -> bool:
    """Tells whether one of the extents is not known."""
    return not all(is_static(extent) for extent in extents)


def number(value: Extent, dtype: torch.dtype = torch.int64) -> Tensor:
    """Returns an extent as a tensor of rank 0."""
    return torch.full((), value, dtype=dtype)


def positions(count: Extent) -> Tensor:
    """0 to count - 1; ``arange`` of a computed extent has no shape that a kernel knows."""
    return torch.arange(int(count)) if is_static(count) else torch.ones((count,), dtype=torch.int64).cumsum(0) - 1


def taken(value: Tensor, axis: int, places: Tensor) -> Tensor:
    """Returns the elements at ``places`` [count, taps] of a dim: the dim becomes two, count and taps."""
    return aten.index.Tensor(value, [*[None] * axis, places])


def widened(value: Tensor) -> Tensor:
    """Returns half types as f32."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def spread(values: Sequence[int] | int | None, count: int) -> list[int]:
    """Returns one number for each of ``count`` dims."""
    entries = [values] if isinstance(values, int) else list(values or [])
    return entries * count if len(entries) == 1 else entries


def along_axis(weights: Tensor, value: Tensor, axis: int) -> Tensor:
    """Returns a vector so that it broadcasts along ``axis`` of ``value``."""
    return weights[(..., *[None] * (value.dim() - axis - 1))]
