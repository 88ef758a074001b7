"""Writing and reading by positions that are known at capture: strided parts, diagonals, pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.size_tensors import number
from lowerkit.capture.torch_export.decompositions.special_functions.elementary import norm_of_difference
from lowerkit.capture.torch_export.operators import aten


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


def _masked_index(value: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: float) -> Tensor:
    """Look-ups of any index, which the nearest element stands for: PyTorch's own decomposition has the first for -1."""
    places: list[Tensor | None] = []
    for axis, index in enumerate(indices):
        extent = number(value.shape[axis])
        places.append(None if index is None else torch.minimum(torch.maximum(index, -extent), extent - 1))
    return aten.index(value, places).masked_fill(~mask, fill)


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


def _copy(value: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The elements of ``source``, in the type and the shape of ``value``."""
    return source.to(value.dtype).expand(value.shape).clone()


def _copied(view: Callable[..., Any]) -> Callable[..., Any]:
    """The op that gives copies of what ``view`` gives."""

    def compute(*arguments: Any, **named: Any) -> Any:
        found = view(*arguments, **named)
        return found.clone() if isinstance(found, Tensor) else [piece.clone() for piece in found]

    return compute


TABLE: dict[Any, Callable[..., Any]] = {
    aten.select_copy.int: _copied(aten.select.int),
    aten.slice_copy.Tensor: _copied(aten.slice.Tensor),
    aten.split_copy.Tensor: _copied(aten.split.Tensor),
    aten.copy.default: _copy,
    aten.put.default: _put,
    aten._unsafe_masked_index.default: _masked_index,
    aten.squeeze.dims: _squeeze,
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten._pdist_forward.default: _pair_distances,
    aten.resize.default: _resized,
}
"""By overload."""
