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


def _remainder(one: float, other: float) -> float:
    """PyTorch's vectors lose quotients beyond 2^53; the C library does not."""
    if math.isnan(one) or math.isnan(other) or math.isinf(one) or other == 0:
        return math.nan
    return math.fmod(one, other)


def _floored_remainder(one: float, other: float) -> float:
    """With the sign of the divisor."""
    rest = _remainder(one, other)
    return rest + other if rest != 0 and (rest < 0) != (other < 0) else rest


def _hard_swish(one: float) -> float:
    """PyTorch multiplies by 6 before it divides."""
    return one * (min(max(one + 3.0, 0.0), 6.0) / 6.0)


_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "logaddexp2.default": _log_add_exp2,
    "fmod.Tensor": _remainder,
    "fmod.Scalar": _remainder,
    "remainder.Tensor": _floored_remainder,
    "remainder.Scalar": _floored_remainder,
    "hardswish.default": _hard_swish,
}
"""By row, of the tensors and then the number."""


def exactly(row: str, tensors: list[Tensor]) -> Tensor | None:
    """Returns a function of one or two in float64; None where PyTorch's is good enough."""
    function = _FUNCTIONS.get(row)
    if function is None:
        return None
    alike = torch.broadcast_tensors(*tensors)
    numbers = [function(*given) for given in zip(*(each.reshape(-1).tolist() for each in alike), strict=True)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(alike[0].shape)
