"""The product of three tensors that ``bilinear`` is, as two products in PyTorch's order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten


def _bilinear(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Sums first and weight before second is multiplied: the order decides about infinities."""
    outputs, inputs, others = weight.shape
    rows = torch.matmul(first, weight.permute(1, 0, 2).reshape(inputs, outputs * others))
    rows = rows.reshape([*first.shape[:-1], outputs, others])
    result = torch.matmul(rows, second.unsqueeze(-1)).squeeze(-1)
    return result if bias is None else result + bias


TABLE: dict[Any, Callable[..., Any]] = {aten.bilinear.default: _bilinear}
"""By overload."""
