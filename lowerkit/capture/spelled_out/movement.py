"""Writing and reading by positions that are known at capture: strided parts, diagonals, pairs, antialiased resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.operators import aten
from lowerkit.capture.spelled_out.functions import norm_of_difference


def _put(value: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Writes by positions in the flattened tensor."""
    written = aten.index_put(value.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return written.reshape(value.shape)


def _squeeze(value: Tensor, dims: Sequence[int]) -> Tensor:
    chosen = {dim % max(value.dim(), 1) for dim in dims}
    return value.reshape([size for dim, size in enumerate(value.shape) if dim not in chosen or size != 1])


def _as_strided_scatter(
    value: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Writes the elements that ``as_strided`` would show; refused where it shows one twice."""
    place = torch.zeros([1] * len(size), dtype=torch.int64) + (storage_offset or 0)
    for dim, (extent, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[dim] = extent
        place = place + (torch.arange(extent) * step).reshape(shape)
    if _overlaps(size, stride) or not value.is_contiguous():
        return NotImplemented
    return _put(value, place, source)


def _overlaps(size: Sequence[int], stride: Sequence[int]) -> bool:
    reach = 0
    for step, extent in sorted(zip(stride, size, strict=True)):
        if extent > 1 and step <= reach:
            return True
        reach += (extent - 1) * step
    return False


def _diagonal_scatter(value: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Writes a diagonal: the two dims become one, in which it stands at equal distances."""
    rest = [dim for dim in range(value.dim()) if dim not in (dim1 % value.dim(), dim2 % value.dim())]
    order = [*rest, dim1 % value.dim(), dim2 % value.dim()]
    turned = value.permute(order)
    rows, columns = turned.shape[-2:]
    count = source.shape[-1]
    place = torch.arange(count) * (columns + 1) + (offset if offset >= 0 else -offset * columns)
    written = aten.index_copy(turned.reshape([*turned.shape[:-2], rows * columns]), -1, place, source)
    return written.reshape(turned.shape).permute([order.index(dim) for dim in range(value.dim())])


def _pair_distances(value: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm of the difference of each two rows."""
    first, second = torch.triu_indices(value.shape[0], value.shape[0], 1)
    return norm_of_difference(value.index_select(0, first) - value.index_select(0, second), p)


def _resized(value: Tensor, size: Sequence[int], *, memory_format: Any = None) -> Tensor:
    """The first elements in another shape; refused where there are too few, as the others would be undefined."""
    count = math.prod(size)
    if count > value.numel() or not value.is_contiguous():
        return NotImplemented
    return value.reshape(-1)[:count].reshape(size)


def _antialiased_weights(before: int, after: int, align_corners: bool, scale: float | None) -> Tensor:
    """Weights of the elements before for each one after: a triangle as wide as the step, of sum one; float64."""
    step = before / after if not scale else 1 / scale
    if align_corners:
        step = (before - 1) / (after - 1) if after > 1 else 0.0
    support = max(step, 1.0)
    center = (torch.arange(after, dtype=torch.float64) + 0.5) * step
    first = torch.trunc(center - support + 0.5).clamp(min=0).unsqueeze(-1)
    last = torch.trunc(center + support + 0.5).clamp(max=before).unsqueeze(-1)
    place = torch.arange(before, dtype=torch.float64)
    weight = (1 - ((place - center.unsqueeze(-1) + 0.5) / support).abs()).clamp(min=0)
    weight = torch.where((place >= first) & (place < last), weight, 0.0)
    total = weight.sum(-1, keepdim=True)
    return weight / torch.where(total == 0, 1.0, total)


def _resize_antialiased(
    value: Tensor,
    output_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """Two products with matrices of weights."""
    height, width = (
        _antialiased_weights(value.shape[dim], size, align_corners, scale).to(value.dtype)
        for dim, size, scale in zip((-2, -1), output_size, (scales_h, scales_w), strict=True)
    )
    return torch.matmul(height, torch.matmul(value, width.t()))


TABLE: dict[Any, Callable[..., Any]] = {
    aten.put.default: _put,
    aten.squeeze.dims: _squeeze,
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten._pdist_forward.default: _pair_distances,
    aten.resize.default: _resized,
    aten._upsample_bilinear2d_aa.default: _resize_antialiased,
}
"""By overload."""
