"""Functions of single elements, and distances, written out of simpler ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten


def _angle(value: Tensor) -> Tensor:
    """The angle of a real number: pi where it is negative (and not -0), NaN where it is NaN."""
    wide = value if value.is_floating_point() else value.to(torch.get_default_dtype())
    zero = torch.zeros_like(wide)  # numbers alone would be chosen among in f32
    angle = torch.where(wide < 0, zero + math.pi, zero)
    return torch.where(torch.isnan(wide), wide, angle)


def _hypot(left: Tensor, right: Tensor) -> Tensor:
    """``larger * sqrt(1 + (smaller / larger)^2)``, which does not overflow on the way; infinite where one side is."""
    left, right = (side.abs() for side in _common(left, right))
    larger, smaller = torch.maximum(left, right), torch.minimum(left, right)
    ratio = torch.where(larger == 0, 0.0, smaller / larger)
    length = larger * torch.sqrt(1 + ratio * ratio)
    return torch.where(torch.isinf(left) | torch.isinf(right), math.inf, length)


def _common(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.result_type(left, right)
    return torch.broadcast_tensors(left.to(dtype), right.to(dtype))


def _cdist_forward(left: Tensor, right: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """The p-norm of the difference of each row of ``left`` and each of ``right``; the largest one passes over NaN."""
    difference = left.unsqueeze(-2) - right.unsqueeze(-3)
    if p == math.inf:
        difference = torch.where(torch.isnan(difference), 0.0, difference)
    return norm_of_difference(difference, p)


def norm_of_difference(difference: Tensor, p: float) -> Tensor:
    """The p-norm of the last dim as distances have it."""
    if p == 0:  # a count that a NaN makes NaN
        return torch.clamp(torch.ceil(difference.abs()), max=1.0).sum(-1)
    if p == math.inf:  # of nothing 0
        return torch.nn.functional.pad(difference.abs(), (0, 1)).amax(-1)
    return torch.linalg.vector_norm(difference, p, dim=-1)


def _threshold_backward(gradient: Tensor, value: Tensor, threshold: float) -> Tensor:
    """In the type that both promote to: PyTorch's own rule of its type gives that of the gradient, its kernel this."""
    if gradient.dtype == value.dtype:
        return NotImplemented
    dtype = torch.result_type(gradient, value)
    return aten.threshold_backward.default(gradient.to(dtype), value.to(dtype), threshold)


def _norm_of_all(value: Tensor, p: Any = 2) -> Tensor:
    """Spelled as one along every axis: torch-mlir's verifier has no bf16 for the other."""
    return aten.norm.ScalarOpt_dim(value, p, [], False)


def _evenly_spaced(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """PyTorch's order: from the start in the first half, from the end in the second.

    Refused for whole numbers, which eager's kernel cuts anew for each vector: they hang on the processor.
    """
    kind = dtype or torch.get_default_dtype()
    if not kind.is_floating_point:
        return NotImplemented
    wide = torch.float64 if kind == torch.float64 else torch.float32
    first, last = (
        bound.to(wide) if isinstance(bound, Tensor) else torch.full((), bound, dtype=wide) for bound in (start, end)
    )
    place = torch.arange(steps)
    step = (last - first) / max(steps - 1, 1)
    upward, downward = first + step * place.to(wide), last - step * (steps - 1 - place).to(wide)
    rising = place < steps // 2 if steps > 1 else place == 0
    return torch.where(rising, upward, downward).to(kind)


def _deviation_and_mean(
    value: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """The deviation is that of ``std``, which goes by no variance that would overflow."""
    return torch.std(value, dim, correction=correction, keepdim=keepdim), torch.mean(value, dim, keepdim=keepdim)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.std_mean.correction: _deviation_and_mean,
    aten.norm.Scalar: _norm_of_all,
    aten.linspace.Tensor_Tensor: _evenly_spaced,
    aten.linspace.Tensor_Scalar: _evenly_spaced,
    aten.linspace.Scalar_Tensor: _evenly_spaced,
    aten.angle.default: _angle,
    aten.hypot.default: _hypot,
    aten.threshold_backward.default: _threshold_backward,
    aten._cdist_forward.default: _cdist_forward,
}
"""By overload."""
