"""Order statistics and counts: what stands where when values are sorted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.graph.checked_indices import CHECKED_INDICES
from lowerkit.capture.torch_export.operators import aten


def _kth_value(value: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest element, counted from 1, and where it stands; a NaN is the largest."""
    if value.dim() == 0:
        return value.clone(), torch.zeros_like(value, dtype=torch.int64)
    values, indices = torch.sort(value, dim=dim, stable=True)
    found, place = values.select(dim, k - 1), indices.select(dim, k - 1)
    return (found.unsqueeze(dim), place.unsqueeze(dim)) if keepdim else (found, place)


def _median_along(value: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower median along a dim and where it stands; NaN where there is one."""
    if value.dim() == 0:
        return value.clone(), torch.zeros_like(value, dtype=torch.int64)
    found, place = _kth_value(value, (value.shape[dim] + 1) // 2, dim, True)
    if value.is_floating_point():
        invalid = torch.isnan(value)
        first = invalid.to(torch.int64).argmax(dim, keepdim=True)
        anywhere = invalid.any(dim, keepdim=True)
        found, place = torch.where(anywhere, math.nan, found), torch.where(anywhere, first, place)
    return (found, place) if keepdim else (found.squeeze(dim), place.squeeze(dim))


def _median(value: Tensor) -> Tensor:
    if 0 in value.shape and value.is_floating_point():
        return torch.full((), math.nan, dtype=value.dtype)
    return _median_along(value.reshape(-1), 0)[0]


def _nan_median_along(value: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower median of what is not NaN along a dim and where it stands; NaN where nothing else is there."""
    if value.dim() == 0:
        return value.clone(), torch.zeros_like(value, dtype=torch.int64)
    values, indices = torch.sort(value, dim=dim, stable=True)  # NaN last
    count = (~torch.isnan(value)).sum(dim, keepdim=True)
    position = ((count - 1) // 2).clamp(min=0)
    found, place = torch.gather(values, dim, position), torch.gather(indices, dim, position)
    return (found, place) if keepdim else (found.squeeze(dim), place.squeeze(dim))


def _nan_median(value: Tensor) -> Tensor:
    if 0 in value.shape and value.is_floating_point():
        return torch.full((), math.nan, dtype=value.dtype)
    return _nan_median_along(value.reshape(-1), 0)[0]


def _histogram_counts(value: Tensor, bins: int = 100, *bounds: float, **named: float) -> Tensor:
    """histc: counts in ``bins`` intervals of equal width; what lies outside counts nowhere, the upper edge in the last.

    Equal bounds stand for the extremes of the values, and for one less and one more where these are equal too.
    """
    first, last = (*bounds, 0.0, 0.0)[:2]
    first, last = named.get("min", first), named.get("max", last)
    flat = value.reshape(-1)
    low, high = torch.full((), first, dtype=value.dtype), torch.full((), last, dtype=value.dtype)
    if first == last and flat.numel():
        low, high = flat.amin(), flat.amax()
        equal = low == high
        low, high = torch.where(equal, low - 1, low), torch.where(equal, high + 1, high)
    elif first == last:
        low, high = low - 1, high + 1
    inside = (flat >= low) & (flat <= high)
    # Where the value lies outside the position is cast from anything: it is replaced before the cast.
    scaled = torch.where(inside, (flat - low) * bins / (high - low), 0.0)
    place = scaled.to(torch.int64).clamp(0, bins - 1)  # a product that leaves the type makes no number
    if first == last:  # eager refuses bounds that are not finite
        bounded = torch.isfinite(low) & torch.isfinite(high)
        place = CHECKED_INDICES(torch.where(bounded, place, -1), [bins], False, None, "histc")
    counts = torch.zeros(bins, dtype=value.dtype)
    return aten.index_put(counts, [place], inside.to(value.dtype), True)


def _search_sorted(
    boundaries: Tensor,
    value: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many boundaries stand before each value: below it, or with ``right`` not above it. A NaN is the largest."""
    if sorter is not None:
        boundaries = torch.gather(boundaries, -1, sorter)
    boundary, one = boundaries.unsqueeze(-2), value.unsqueeze(-1)
    if value.dim() == 0:
        boundary = boundaries
    inclusive = right or side == "right"
    before = boundary <= one if inclusive else boundary < one
    if value.is_floating_point():
        invalid = torch.isnan(one).expand(before.shape)
        before = before | (invalid if inclusive else invalid & ~torch.isnan(boundary))
    return before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _bucket(value: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _search_sorted(boundaries, value, out_int32=out_int32, right=right)


def _index_reduce(
    value: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A scatter of whole slices: the index is the same for all elements of a slice."""
    if value.dim() == 0:
        value, source = value.reshape(1), source.reshape(1)
        return _index_reduce(value, 0, index, source, reduce, include_self=include_self).reshape(())
    shape = [1] * source.dim()
    shape[dim] = source.shape[dim]
    positions = index.reshape(shape).expand(source.shape)
    return torch.scatter_reduce(value, dim, positions, source, reduce, include_self=include_self)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.kthvalue.default: _kth_value,
    aten.median.dim: _median_along,
    aten.median.default: _median,
    aten.nanmedian.dim: _nan_median_along,
    aten.nanmedian.default: _nan_median,
    aten.histc.default: _histogram_counts,
    aten.searchsorted.Tensor: _search_sorted,
    aten.bucketize.Tensor: _bucket,
    aten.index_reduce.default: _index_reduce,
}
"""By overload."""
