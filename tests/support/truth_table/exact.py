"""Functions of which PyTorch in float64 is no measure: computed with 60 digits and rounded once."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_MP: Any = importlib.import_module("mpmath")


def _log_add_exp2(one: float, other: float) -> float:
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)
    with _MP.workdps(60):
        larger = _MP.mpf(max(one, other))
        return float(larger + _MP.log(1 + _MP.power(2, min(one, other) - larger), 2))


_FUNCTIONS: Mapping[str, Callable[[float, float], float]] = {"logaddexp2.default": _log_add_exp2}
"""By row."""


def exactly(row: str, tensors: list[Tensor]) -> Tensor | None:
    """Returns a function of two in float64; None where PyTorch's is good enough."""
    function = _FUNCTIONS.get(row)
    if function is None:
        return None
    one, other = torch.broadcast_tensors(*tensors)
    numbers = [function(*pair) for pair in zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=True)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(one.shape)
