"""Operators of symbolic sizes whose arithmetic needs those as numbers: pools, resizing, membership.

The functions are for symbolic sizes only; with known sizes they return NotImplemented and the op stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions import resize, windows
from lowerkit.capture.torch_export.decompositions.size_tensors import is_symbolic
from lowerkit.capture.torch_export.operators import aten


def _is_in(elements: Tensor, among: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Each with each: PyTorch's own decomposition asks of the sizes whether sorting is faster."""
    if not is_symbolic([*elements.shape, *among.shape]):
        return NotImplemented
    found = (elements[..., None] == among.reshape(-1)).any(-1)
    return torch.logical_not(found) if invert else found


OF_SIZES: dict[Any, Callable[..., Any]] = {
    **resize.OF_SIZES,
    **windows.OF_SIZES,
    aten.isin.Tensor_Tensor: _is_in,
}
"""By overload."""
