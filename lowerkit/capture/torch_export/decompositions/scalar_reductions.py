"""Reductions of tensors of rank 0 along their one dim that is none: they give the value itself.

The functions are for rank 0 only; tensors with dims keep the op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten


def _itself(value: Tensor, *_: Any, **__: Any) -> Tensor:
    return NotImplemented if value.dim() else value.clone()


def _with_place(value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return NotImplemented if value.dim() else (value.clone(), torch.zeros_like(value, dtype=torch.int64))


def _largest(value: Tensor, k: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return NotImplemented if value.dim() or k != 1 else _with_place(value)


def _place(value: Tensor, *_: Any, **__: Any) -> Tensor:
    return NotImplemented if value.dim() else torch.zeros_like(value, dtype=torch.int64)


def _running_sum(value: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return NotImplemented if value.dim() else torch.sum(value, [], dtype=dtype)


def _gather(value: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    return NotImplemented if value.dim() else value.expand(index.shape).clone()


def _log_of_sum(value: Tensor, *_: Any, **__: Any) -> Tensor:
    if value.dim():
        return NotImplemented
    return value.clone() if value.is_floating_point() else value.to(torch.get_default_dtype())


def _running_product(value: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return NotImplemented if value.dim() else torch.prod(value, dtype=dtype)


def _count_nonzero(value: Tensor, *_: Any, **__: Any) -> Tensor:
    return NotImplemented if value.dim() else (value != 0).to(torch.int64)


OF_SCALARS: dict[Any, Callable[..., Any]] = {
    aten.amax.default: _itself,
    aten.amin.default: _itself,
    aten.max.dim: _with_place,
    aten.min.dim: _with_place,
    aten.topk.default: _largest,
    aten.sort.default: _with_place,
    aten.sort.stable: _with_place,
    aten.argsort.default: _place,
    aten.argsort.stable: _place,
    aten.cumsum.default: _running_sum,
    aten.cumprod.default: _running_product,
    aten.count_nonzero.default: _count_nonzero,
    aten.count_nonzero.dim_IntList: _count_nonzero,
    aten.gather.default: _gather,
    aten.logsumexp.default: _log_of_sum,
}
"""By overload."""
