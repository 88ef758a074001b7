"""Bags of embeddings: sums, means and maxima of stretches of rows that are looked up, which may begin where data says.

Each gives what PyTorch's kernels for the CPU give where nothing needs a gradient: the values, the bag of each row, the
rows that each bag counts, and the row of each maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten

_SUM, _MEAN, _MAX = range(3)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bags begin at ``offsets``; the rows of ``padding_idx`` count nowhere.

    With ``include_last_offset``, rows behind the last of ``offsets`` belong to the last bag: PyTorch's kernels count
    them in its size, and its fast one for sums (without ``padding_idx``, not in f64) alone leaves them out of the sum.
    That one does not tell the bags of the rows either.
    """
    places = torch.arange(indices.shape[0])
    counts = torch.ones_like(indices, dtype=torch.bool)
    rows = aten.embedding(weight, indices)
    fast = padding_idx is None and weight.dtype != torch.float64
    if padding_idx is not None:
        counts = indices != padding_idx % weight.shape[0]
    begins = offsets[:-1] if include_last_offset else offsets
    bags = begins.shape[0]
    bag = (begins.unsqueeze(0) <= places.unsqueeze(1)).sum(1) - 1
    size = aten.index_add(begins.new_zeros([bags]), 0, bag, counts.to(offsets.dtype))
    if mode == _MAX:
        found, largest = _maxima(rows, indices, bag, counts, size)
        return found, bag, size, largest
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    kept = counts
    if include_last_offset and fast:
        kept = places < offsets[-1:]
    rows = torch.where(kept.unsqueeze(1), rows, 0.0)
    total = aten.index_add(weight.new_zeros([bags, weight.shape[1]]), 0, bag, rows)
    if mode == _SUM:
        unused = torch.zeros_like(offsets)
        return total, bag.new_zeros([0]) if fast else bag, unused, unused
    return total / torch.clamp(size, min=1).to(total.dtype).unsqueeze(1), bag, size, size


def _maxima(rows: Tensor, indices: Tensor, bag: Tensor, counts: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of each column of each bag, 0 of none, and the index of its row, [bags, columns] both.

    PyTorch keeps the first row that counts and replaces it by what is larger: a NaN stays where it is the first, and is
    nothing anywhere else.
    """
    bags, columns, behind = size.shape[0], rows.shape[1], indices.shape[0]
    places = torch.arange(behind)

    def first_of(holds: Tensor) -> Tensor:
        """The first place of each bag for which ``holds`` [places, n]: ``behind`` where there is none."""
        found = torch.full([bags, holds.shape[1]], 0, dtype=torch.int64) + behind
        return aten.index_reduce(found, 0, bag, torch.where(holds, places.unsqueeze(1), behind), "amin")

    first = first_of(counts.unsqueeze(1))
    invalid = torch.isnan(rows)
    ordered = torch.where(counts.unsqueeze(1) & ~invalid, rows, -math.inf)
    found = aten.index_reduce(rows.new_full([bags, columns], -math.inf), 0, bag, ordered, "amax")
    begins = first[bag] == places.unsqueeze(1)
    lost = first_of(begins & invalid) < behind
    place = first_of(counts.unsqueeze(1) & (ordered == found[bag]))
    found = torch.where((size == 0).unsqueeze(1), 0.0, torch.where(lost, math.nan, found))
    rows_and_none = torch.cat([indices, indices.new_zeros([1])])
    return found, rows_and_none[torch.where(lost, first, place)]


def _without_optional(*arguments: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The overloads for which a negative ``padding_idx`` is none."""
    if len(arguments) > 8:
        arguments, named = arguments[:8], {**named, "padding_idx": arguments[8]}
    padding = named.pop("padding_idx", -1)
    return _embedding_bag(*arguments, **named, padding_idx=padding if padding >= 0 else None)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.embedding_bag.default: _embedding_bag,
    aten.embedding_bag.padding_idx: _embedding_bag,
    aten._embedding_bag.default: _without_optional,
    aten._embedding_bag_forward_only.default: _without_optional,
}
"""By overload."""
