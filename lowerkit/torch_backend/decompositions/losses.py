"""Gradients of losses by class: a comparison with the class numbers, which needs no scatter."""

from __future__ import annotations

import torch
from torch import Tensor

_MEAN = 1


def nll_loss_backward(
    grad: Tensor,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Gradient of the negative log likelihood: of scores (C), (N, C) or (N, C, ...)."""
    axis = min(1, scores.dim() - 1)
    shape = [scores.shape[axis] if place == axis else 1 for place in range(scores.dim())]
    classes = torch.arange(scores.shape[axis], device=scores.device).reshape(shape)
    chosen = target.unsqueeze(axis)
    share = -(grad / total_weight if reduction == _MEAN else grad)
    share = share.unsqueeze(axis) if share.dim() else share
    if weight is not None:
        share = share * weight.reshape(shape)
    return torch.where((chosen == classes) & (chosen != ignore_index), share, 0.0)
