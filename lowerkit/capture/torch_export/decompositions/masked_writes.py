"""Writes by a mask: the n-th value goes where the mask holds for the n-th time.

How many places that are is data: a check stands in the program where eager would refuse another number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.graph.checked_indices import CHECKED_INDICES
from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.dims import is_static


def _in_place(mask: Tensor, values: Tensor, operator: str, *, all_used: bool) -> Tensor:
    """Returns the values in the shape of the mask, each where it goes; elsewhere any of them."""
    place = torch.cumsum(mask.reshape(-1), 0) - 1
    place = CHECKED_INDICES(place, [values.shape[0]], False, -1, operator)
    if all_used:
        left = values.shape[0] - mask.sum().reshape(1)
        place = place + CHECKED_INDICES(left, [1], False, None, f"{operator}'s values without a place")
    return values.index_select(0, place.clamp(min=0)).reshape([*mask.shape, *values.shape[1:]])


def _masked_scatter(value: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """More values than places are none too many."""
    value, mask = torch.broadcast_tensors(value, mask)
    flat = source.reshape(-1)
    if is_static(flat.shape[0]) and flat.shape[0] == 0:
        return NotImplemented
    return torch.where(mask, _in_place(mask, flat, "masked_scatter", all_used=False), value)


def _is_by_mask(value: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> bool:
    """By a mask of the first dims, with a value for each place; what is written by numbers, or one value, stays."""
    mask = indices[0]
    if mask is None or mask.dtype != torch.bool or any(index is not None for index in indices[1:]):
        return False
    a_value_each = values.dim() == value.dim() - mask.dim() + 1
    return a_value_each and not (is_static(values.shape[0]) and values.shape[0] in (0, 1))


def _index_put(value: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    if not _is_by_mask(value, indices, values):
        return NotImplemented
    mask = indices[0]
    assert mask is not None, "it is a mask"
    updates = _in_place(mask, values, "index_put", all_used=True).to(value.dtype)
    mask = mask[(..., *[None] * (value.dim() - mask.dim()))]
    return torch.where(mask, value + updates if accumulate else updates, value)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.masked_scatter.default: _masked_scatter,
    aten.index_put.default: _index_put,
}
"""By overload."""

TAKES: dict[Any, Callable[..., bool]] = {aten.index_put.default: _is_by_mask}
"""Whether the function of an overload takes the arguments: a node that it leaves alone asks for no round of tracing."""
