"""The products of a mixture of experts, one for each expert: rows are sorted by expert, and each belongs to one.

Every expert's product runs over all rows, and those of others are left out of the result, because how many rows an
expert has is data. So it computes as often as there are experts, and is refused where these are many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOST_EXPERTS = 64


def _grouped_product(rows: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Returns [rows, out] of rows [rows, in] and weight [experts, in, out]; ``offs`` are the ends of the experts' rows.

    Rows behind the last end are zero.
    """
    if rows.dim() != 2 or weight.dim() != 3 or weight.shape[0] > MOST_EXPERTS:
        return NotImplemented
    place = torch.arange(rows.shape[0]).unsqueeze(-1)
    found = torch.zeros(rows.shape[0], weight.shape[2], dtype=rows.dtype)
    for expert in range(weight.shape[0]):
        mine = place < offs[expert]
        if expert:
            mine = mine & (place >= offs[expert - 1])
        found = torch.where(mine, torch.matmul(rows, weight[expert]), found)
    return found


BY_NAME: dict[str, Callable[..., Any]] = {"transformers.grouped_mm_fallback.default": _grouped_product}
"""By the text of the overload: the op is there once transformers is imported."""
