"""Losses, and gradients of softmax, in PyTorch's order of steps: it decides what large logits and infinities give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten

_MEAN, _SUM = 1, 2
"""PyTorch's numbers of reductions; 0 is none."""


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss.mean() if reduction == _MEAN else loss.sum() if reduction == _SUM else loss


def _softmax_backward(gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """``(gradient - sum(gradient * output)) * output``, in f32 for 16-bit floats."""
    wide = torch.float64 if output.dtype == torch.float64 else torch.float32
    by, value = gradient.to(wide), output.to(wide)
    return ((by - (by * value).sum(dim, keepdim=True)) * value).to(input_dtype)


def _log_softmax_backward(gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """``gradient - exp(output) * sum(gradient)``, in f32 for 16-bit floats."""
    wide = torch.float64 if output.dtype == torch.float64 else torch.float32
    by = gradient.to(wide)
    return (by - torch.exp(output.to(wide)) * by.sum(dim, keepdim=True)).to(input_dtype)


def _positive(value: Tensor) -> Tensor:
    """Eager adds what is above zero: a NaN is not."""
    return torch.where(value > 0, value, 0.0)


def _multi_margin(
    value: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """The mean over the other classes of ``max(0, margin - value[target] + value[class]) ** p``."""
    rows, label = torch.atleast_2d(value), torch.atleast_1d(target).unsqueeze(1)
    classes = rows.shape[1]
    short = _positive(margin - torch.gather(rows, 1, label) + rows)
    loss = short if p == 1 else short * short
    if weight is not None:
        loss = loss * weight[label]
    loss = torch.where(torch.arange(classes) != label, loss, 0.0).sum(1) / classes
    return _reduced(loss.reshape(target.shape), reduction)


def _multi_label_margin(value: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _multi_label_margin_and_labels(value, target, reduction)[0]


def _multi_label_margin_and_labels(value: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The hinge ``max(0, 1 - value[label] + value[class])`` of a row's labels, up to its first -1, and other classes.

    With it, which classes are labels, as numbers of the type of ``value``.

    PyTorch's own decomposition adds terms for what stands behind the first -1.
    """
    rows, labels = torch.atleast_2d(value), torch.atleast_2d(target)
    classes = rows.shape[1]
    place = torch.arange(classes)
    end = torch.where(labels == -1, place, classes).amin(1, keepdim=True)
    named = place < end
    label = torch.where(named, labels, 0)
    is_label = (named.unsqueeze(-1) & (label.unsqueeze(-1) == place)).any(1)
    short = _positive(1.0 - torch.gather(rows, 1, label).unsqueeze(-1) + rows.unsqueeze(1))
    counted = named.unsqueeze(-1) & ~is_label.unsqueeze(1)
    loss = torch.where(counted, short, 0.0).sum((1, 2)) / classes
    return _reduced(loss.reshape(value.shape[:-1]), reduction), is_label.to(value.dtype).reshape(target.shape)


TABLE: dict[Any, Callable[..., Any]] = {
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.multi_margin_loss.default: _multi_margin,
    aten.multilabel_margin_loss.default: _multi_label_margin,
    aten.multilabel_margin_loss_forward.default: _multi_label_margin_and_labels,
}
"""By overload."""
