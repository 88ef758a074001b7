"""Determinants by LU factors with exchanged rows: torch-mlir's conversion exchanges none, and divides by zeros.

det A = (-1)^exchanges * product of U's diagonal          log |det A| = sum of the logarithms of its magnitudes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.linear_algebra.lu_cholesky import lu_factors
from lowerkit.capture.torch_export.operators import aten


def _factored(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the parity of the exchanges as 1 or -1, U's diagonal, the factors and the exchanges."""
    factors, exchanges, _, _ = lu_factors(a)
    count = (exchanges != torch.arange(1, a.shape[-1] + 1)).sum(-1)
    parity = torch.where(count % 2 == 0, 1.0, -1.0).to(a.dtype)
    return parity, factors.diagonal(dim1=-2, dim2=-1), factors, exchanges


def _determinant_with_factors(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    parity, diagonal, factors, exchanges = _factored(a)
    return diagonal.prod(-1) * parity, factors, exchanges


def _logarithm_with_factors(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parity, diagonal, factors, exchanges = _factored(a)
    return diagonal.sgn().prod(-1) * parity, diagonal.abs().log().sum(-1), factors, exchanges


TABLE: dict[Any, Callable[..., Any]] = {
    aten._linalg_det.default: _determinant_with_factors,
    aten._linalg_slogdet.default: _logarithm_with_factors,
}
