"""Running values along a dim that are no running sums: extremes with their places, log of sums of exponentials, modes.

A scan of n elements takes log2(n) steps. Before the step of distance d an element stands for the 2^k = d elements up to
itself; after it for twice as many (Hillis and Steele 1986).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten

Combine = Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
"""(what stands before, what stands after) -> the two taken together; associative."""


def _scan(values: Sequence[Tensor], dim: int, combine: Combine) -> list[Tensor]:
    found = list(values)
    size = found[0].shape[dim]
    shape = [1] * found[0].dim()
    shape[dim] = size
    place = torch.arange(size).reshape(shape)
    distance = 1
    while distance < size:
        before = [torch.roll(value, distance, dim) for value in found]
        together = combine(before, found)
        found = [torch.where(place >= distance, one, value) for one, value in zip(together, found, strict=True)]
        distance *= 2
    return found


def _running_extreme(larger: bool) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    def combine(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[Tensor]:
        (one, one_place), (other, other_place) = before, after
        wins = other >= one if larger else other <= one  # of equals the last
        if one.is_floating_point():
            wins = torch.isnan(other) | (~torch.isnan(one) & wins)
        return [torch.where(wins, other, one), torch.where(wins, other_place, one_place)]

    def compute(value: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if value.dim() == 0:
            return value.clone(), torch.zeros_like(value, dtype=torch.int64)
        shape = [1] * value.dim()
        shape[dim] = value.shape[dim]
        place = torch.arange(value.shape[dim]).reshape(shape).expand(value.shape)
        found, index = _scan([value, place], dim, combine)
        return found, index

    return compute


def _log_of_running_sum(value: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(x))), each step relative to the larger of the two that it adds.

    The first element of a dim too is a sum, with the logarithm of nothing: of zeros the positive one.
    """
    if value.dim() == 0:
        return value.clone()

    def combine(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[Tensor]:
        larger, smaller = torch.maximum(before[0], after[0]), torch.minimum(before[0], after[0])
        # Two equal infinities have no difference.
        distance = torch.where(larger == smaller, 0.0, smaller - larger)
        return [torch.where(torch.isinf(larger), larger, larger + torch.log1p(torch.exp(distance)))]

    (found,) = _scan([value.to(torch.float64) + 0.0], dim, combine)
    return found.to(value.dtype)


def _mode(value: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The most frequent value along a dim, of several the smallest, and the last place where it stands."""
    if value.dim() == 0:
        return value.clone(), torch.zeros_like(value, dtype=torch.int64)
    ordered, places = torch.sort(value, dim=dim, stable=True)
    size = value.shape[dim]
    shape = [1] * value.dim()
    shape[dim] = size
    position = torch.arange(size).reshape(shape).expand(value.shape)
    begins = (ordered != torch.roll(ordered, 1, dim)) | (position == 0)

    def latest(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[Tensor]:
        return [torch.maximum(before[0], after[0])]

    (first,) = _scan([torch.where(begins, position, 0)], dim, latest)
    best = (position - first).argmax(dim, keepdim=True)  # the first of equals: the smallest value
    found, place = torch.gather(ordered, dim, best), torch.gather(places, dim, best)
    return (found, place) if keepdim else (found.squeeze(dim), place.squeeze(dim))


def _segment_reduce(
    value: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Reduces each of the stretches that ``lengths``, or the ``offsets`` of their ends, cut ``axis`` into.

    An empty stretch gives the initial value, which is that of the reduction unless it is given; for a mean NaN.
    """
    if indices is not None:
        return NotImplemented
    if offsets is None:
        if lengths is None:
            return NotImplemented
        ends = lengths.cumsum(axis)
        begins = ends - lengths
    else:
        count = offsets.shape[axis] - 1
        begins, ends = offsets.narrow(axis, 0, count), offsets.narrow(axis, 1, count)
        lengths = ends - begins
    position = torch.arange(value.shape[axis])
    inside = (position >= begins.unsqueeze(-1)) & (position < ends.unsqueeze(-1))
    rest = [1] * (value.dim() - axis - 1)
    inside = inside.reshape([*inside.shape, *rest])
    start = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[reduce]
    terms = torch.where(inside, value.unsqueeze(axis), start).to(value.dtype)
    along = axis + 1
    first = start if initial is None else initial
    if reduce == "max":
        found = terms.amax(along).clamp(min=first)
    elif reduce == "min":
        found = terms.amin(along).clamp(max=first)
    elif reduce == "prod":
        found = terms.prod(along) * first
    else:
        found = terms.sum(along) + first
    if reduce == "mean":
        divisor = lengths.reshape([*lengths.shape, *rest])
        mean = found / torch.where(divisor == 0, 1, divisor)
        found = torch.where(divisor == 0, math.nan if initial is None else found, mean)
    return found.to(value.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.cummax.default: _running_extreme(larger=True),
    aten.cummin.default: _running_extreme(larger=False),
    aten.logcumsumexp.default: _log_of_running_sum,
    aten.mode.default: _mode,
    aten.segment_reduce.default: _segment_reduce,
}
"""By overload."""
