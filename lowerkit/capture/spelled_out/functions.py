"""Functions of single elements, and distances, written out of simpler ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _angle(value: Tensor) -> Tensor:
    """The angle of a real number: pi where it is negative (and not -0), NaN where it is NaN."""
    wide = value if value.is_floating_point() else value.to(torch.get_default_dtype())
    angle = torch.where(wide < 0, math.pi, 0.0).to(wide.dtype)
    return torch.where(torch.isnan(wide), wide, angle)


def _fmin(left: Tensor, right: Tensor) -> Tensor:
    """The smaller of two, a number rather than a NaN."""
    left, right = _common(left, right)
    return torch.where(torch.isnan(left), right, torch.where(torch.isnan(right), left, torch.minimum(left, right)))


def _fmax(left: Tensor, right: Tensor) -> Tensor:
    """The larger of two, a number rather than a NaN."""
    left, right = _common(left, right)
    return torch.where(torch.isnan(left), right, torch.where(torch.isnan(right), left, torch.maximum(left, right)))


def _hypot(left: Tensor, right: Tensor) -> Tensor:
    """``larger * sqrt(1 + (smaller / larger)^2)``, which does not overflow on the way; infinite where one side is."""
    left, right = (side.abs() for side in _common(left, right))
    larger, smaller = torch.maximum(left, right), torch.minimum(left, right)
    ratio = torch.where(larger == 0, 0.0, smaller / larger)
    length = larger * torch.sqrt(1 + ratio * ratio)
    return torch.where(torch.isinf(left) | torch.isinf(right), math.inf, length)


def _copysign(value: Tensor, sign: Tensor) -> Tensor:
    """The magnitude of one with the sign of the other; the sign of 0 shows in its reciprocal."""
    wide = value if value.is_floating_point() else value.to(torch.get_default_dtype())
    magnitude, other = _common(wide, sign)
    negative = (other < 0) | ((other == 0) & (torch.reciprocal(other) < 0))
    size = magnitude.abs()
    return torch.where(negative, -size, size)


def _common(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.result_type(left, right)
    return torch.broadcast_tensors(left.to(dtype), right.to(dtype))


def _cdist_forward(left: Tensor, right: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """The p-norm of the difference of each row of ``left`` and each of ``right``."""
    return torch.linalg.vector_norm(left.unsqueeze(-2) - right.unsqueeze(-3), p, dim=-1)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.angle.default: _angle,
    aten.fmin.default: _fmin,
    aten.fmax.default: _fmax,
    aten.hypot.default: _hypot,
    aten.copysign.Tensor: _copysign,
    aten._cdist_forward.default: _cdist_forward,
}
"""By overload."""
