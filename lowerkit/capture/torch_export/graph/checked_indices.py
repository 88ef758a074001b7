"""``lowerkit::checked_indices``: an index tensor that is known to be in range, as an op of a captured graph.

    checked_indices(indices, sizes, wraps, exempt, operator) -> indices

``sizes`` are the extents that are indexed: one, or one for each element of the last dim of ``indices``, over and over.
An index from 0 to ``size - 1`` is in range, with ``wraps`` one from ``-size`` too, and ``exempt`` whatever the size.
The op stands between an index and the op of the user's that looks up by it, before anything is decomposed: so what is
checked is what that op says of its indices, and not what it is written out of. ``operator`` is its name, for people.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_NAMESPACE = "lowerkit"
_NAME = "checked_indices"

_library = torch.library.Library(_NAMESPACE, "DEF")
_library.define(
    f"{_NAME}(Tensor indices, SymInt[] sizes, bool wraps, int? exempt, str operator) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _same(indices: Tensor, sizes: Sequence[int], wraps: bool, exempt: int | None, operator: str) -> Tensor:
    return torch.empty_like(indices, memory_format=torch.contiguous_format).copy_(indices)


def _shape(indices: Tensor, sizes: Sequence[int], wraps: bool, exempt: int | None, operator: str) -> Tensor:
    return torch.empty_like(indices, memory_format=torch.contiguous_format)


_library.impl(_NAME, _same, "CompositeExplicitAutograd")
_library.impl(_NAME, _shape, "Meta")

CHECKED_INDICES: Any = torch.ops.lowerkit.checked_indices.default
"""The overload. Computed by PyTorch it gives its argument, as it is: who compares with eager has had eager's error."""


def all_in_range(indices: Tensor, sizes: Sequence[int], wraps: bool, exempt: int | None, operator: str) -> bool:
    """Whether nothing is left to check; takes the arguments of the op."""
    if indices.numel() == 0:
        return True
    limits = torch.tensor([int(size) for size in sizes], dtype=torch.int64)
    inside = (indices >= (-limits if wraps else 0)) & (indices < limits)
    return bool((inside if exempt is None else inside | (indices == exempt)).all())
