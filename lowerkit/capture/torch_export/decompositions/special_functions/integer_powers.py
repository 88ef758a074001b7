"""Powers of integers whose exponents are tensors, by squaring; they wrap as products do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.while_loops import run_while
from lowerkit.capture.torch_export.operators import aten


def _is_power(base: Tensor, exponent: Tensor) -> bool:
    dtype = torch.result_type(base, exponent)
    return not (dtype.is_floating_point or dtype is torch.bool)


def _power(base: Tensor, exponent: Tensor) -> Tensor:
    """The products of those squares whose bit the exponent has; below 0 what is left of a fraction: 1, -1 or 0."""
    if not _is_power(base, exponent):
        return NotImplemented
    dtype = torch.result_type(base, exponent)
    first, last = torch.broadcast_tensors(base.to(dtype), exponent.to(dtype))

    def more(result: Tensor, square: Tensor, left: Tensor) -> Tensor:
        return (left != 0).any()

    def body(result: Tensor, square: Tensor, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        taken = torch.where((left & 1) != 0, result * square, result)
        return taken, square * square, left >> 1

    found = run_while(more, body, (torch.ones_like(first), first.clone(), last.clamp(min=0)), ())[0]
    whole = torch.where(first == 1, 1, torch.where(first == -1, 1 - 2 * (last & 1), 0)).to(dtype)
    return torch.where(last < 0, whole, found)


def _is_power_of_number(base: float, exponent: Tensor) -> bool:
    return not (isinstance(base, float) or exponent.is_floating_point())


def _power_of_number(base: float, exponent: Tensor) -> Tensor:
    if not _is_power_of_number(base, exponent):
        return NotImplemented
    dtype = torch.result_type(base, exponent)
    return _power(torch.full((), int(base), dtype=torch.int64).to(dtype), exponent.to(dtype))


TABLE: dict[Any, Callable[..., Any]] = {
    aten.pow.Tensor_Tensor: _power,
    aten.pow.Scalar: _power_of_number,
}
"""By overload."""

TAKES: dict[Any, Callable[..., bool]] = {
    aten.pow.Tensor_Tensor: _is_power,
    aten.pow.Scalar: _is_power_of_number,
}
"""Which arguments the functions of :data:`TABLE` take. Powers of floats are common, and tracing a graph again to find
that none of them is decomposed takes as long as its export."""
