"""QR by reflections, as LAPACK does it: signs of the factors included.

Vocabulary
    reflector  ``I - tau v v'``; v has zeros above its turn, a one there, and the rest stands below the diagonal of the
               factored matrix.

Formulas: LAPACK's xGEQR2, xLARFG and xORG2R. A turn is a column; see
:mod:`lowerkit.capture.torch_export.decompositions.while_loops`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.while_loops import column_of, places_of, row_of, run_turns
from lowerkit.capture.torch_export.operators import aten


def _reflector(a: Tensor, turn: Tensor) -> Tensor:
    rows, _ = places_of(a)
    return torch.where(rows > turn, column_of(a, turn), torch.where(rows == turn, 1.0, 0.0)).to(a.dtype)


def _length(column: Tensor) -> Tensor:
    """The norm of the last two dims; divided by the largest element where its square would leave the type."""
    kind = torch.finfo(column.dtype)
    largest = column.abs().amax((-2, -1), keepdim=True)
    far = (largest > kind.max**0.5 / column.shape[-2]) | (largest < kind.tiny**0.5 / kind.eps)
    unit = torch.where(far & (largest > 0) & torch.isfinite(largest), largest, 1.0)
    return unit * torch.linalg.vector_norm(column / unit, 2, dim=(-2, -1), keepdim=True)


def _factor(a: Tensor) -> tuple[Tensor, Tensor]:
    """geqrf: returns the factored matrix and the factors tau."""
    count = min(a.shape[-2:])
    if count == 0:  # a matrix without rows has no largest element
        return a.clone(), torch.zeros([*a.shape[:-2], 0], dtype=a.dtype)

    def body(turn: Tensor, a: Tensor, taus: Tensor) -> tuple[Tensor, ...]:
        rows, columns = places_of(a)
        column = column_of(a, turn)
        corner = row_of(column, turn)
        below = torch.where(rows > turn, column, 0.0)
        norm = _length(below)
        size = torch.hypot(corner, norm)
        diagonal = torch.where(corner >= 0, -size, size)
        straight = norm == 0  # nothing to reflect
        diagonal = torch.where(straight, corner, diagonal)
        tau = torch.where(straight, 0.0, (diagonal - corner) / torch.where(straight, 1.0, diagonal)).to(a.dtype)
        scaled = below / torch.where(straight, 1.0, corner - diagonal)
        v = torch.where(rows == turn, 1.0, scaled).to(a.dtype)
        reflected = a - tau * v * torch.matmul(v.transpose(-1, -2), a)
        own = torch.where(rows > turn, scaled, torch.where(rows == turn, diagonal, a))
        a = torch.where((columns > turn) & (rows >= turn), reflected, torch.where(columns == turn, own, a))
        return a, torch.where(torch.arange(count) == turn, tau.squeeze(-1), taus)

    factored, taus = run_turns(count, body, (a, torch.zeros([*a.shape[:-2], count], dtype=a.dtype)))
    return factored, taus


def _reflect(a: Tensor, taus: Tensor, target: Tensor, *, transpose: bool) -> Tensor:
    """Q target, or Q' target, without making Q."""
    count = taus.shape[-1]

    def body(turn: Tensor, target: Tensor, a: Tensor, taus: Tensor) -> tuple[Tensor, ...]:
        at = turn if transpose else count - 1 - turn
        v = _reflector(a, at)
        tau = taus.index_select(-1, at.reshape(1)).unsqueeze(-1)
        return (target - tau * v * torch.matmul(v.transpose(-1, -2), target),)

    return run_turns(count, body, (target,), (a, taus))[0]


def _householder_product(a: Tensor, taus: Tensor) -> Tensor:
    eye = torch.eye(a.shape[-2], a.shape[-1], dtype=a.dtype).expand(a.shape)
    return eye.clone() if taus.shape[-1] == 0 else _reflect(a, taus, eye, transpose=False)


def _qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    factored, taus = _factor(a)
    height, count = a.shape[-2], min(a.shape[-2:])
    rows = height if mode == "complete" else count
    upper = factored[..., :rows, :].triu()
    if mode == "r":
        return torch.empty(0, dtype=a.dtype), upper
    eye = torch.eye(height, rows, dtype=a.dtype).expand([*a.shape[:-2], height, rows])
    return _reflect(factored, taus, eye, transpose=False), upper


def _multiply(a: Tensor, taus: Tensor, target: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """ormqr."""
    if left:
        return _reflect(a, taus, target, transpose=transpose)
    turned = _reflect(a, taus, target.transpose(-1, -2), transpose=not transpose)
    return turned.transpose(-1, -2)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.geqrf.default: _factor,
    aten.linalg_householder_product.default: _householder_product,
    aten.linalg_qr.default: _qr,
    aten.ormqr.default: _multiply,
}
"""By overload."""
