"""Norms whose means and deviations are read beside the values: the values stay one op, those are spelled out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten
from lowerkit.errors import UnsupportedError


def _statistics(value: Tensor, axes: Sequence[int], weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The mean and the reciprocal deviation, in f32 for 16-bit floats and rounded to the wider of value and weight."""
    kind = value.dtype if weight is None else torch.promote_types(value.dtype, weight.dtype)
    wide = value if value.dtype == torch.float64 else value.to(torch.float32)
    variance, mean = torch.var_mean(wide, list(axes), correction=0, keepdim=True)
    return mean.to(kind), torch.rsqrt(variance + eps).to(kind)


def _layer_norm(
    value: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = range(value.dim() - len(shape), value.dim())
    return aten.layer_norm(value, shape, weight, bias, eps), *_statistics(value, axes, weight, eps)


def _group_norm(
    value: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    samples: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    parts = value.reshape(samples, groups, channels // groups * pixels)
    mean, deviation = _statistics(parts, [2], weight, eps)
    return aten.group_norm(value, groups, weight, bias, eps), mean.squeeze(2), deviation.squeeze(2)


def _batch_norm(
    value: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if training:
        raise UnsupportedError(
            "LK4001",
            "a batch norm in training mode",
            op="aten.native_batch_norm",
            hint="call model.eval() before capture",
        )
    unused = value.new_zeros([0])
    found = aten._native_batch_norm_legit_no_training(value, weight, bias, mean, variance, momentum, eps)
    return found[0], unused, unused.clone()


WITH_STATISTICS: dict[Any, Callable[..., Any]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.native_batch_norm.default: _batch_norm,
}
"""By overload; for nodes whose statistics are read."""
