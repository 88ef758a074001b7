"""Factorizations into triangles (LU with row exchanges, Cholesky) and what is solved with them.

Vocabulary
    turn      one column (LU, Cholesky) or one row (solving) of a loop; it changes the whole matrix under a mask.
    exchanges LAPACK's ``pivots``: in turn k row k was exchanged with row ``pivots[k] - 1``.
    info      LAPACK's: 0, or the number of the first turn without a pivot. Where eager raises an error then, a compiled
              model goes on and gives infinities or NaN.

Formulas: Golub and Van Loan, Matrix Computations, algorithms 3.4.1, 4.2.2 and 3.1.1. Dims before the last two are a
batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.while_loops import column_of, places_of, row_of, run_turns
from lowerkit.capture.torch_export.operators import aten


def lu_factors(matrix: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns both triangles in one matrix, exchanges (int32), info (int32), and the order of rows (int64)."""
    batch, height, count = matrix.shape[:-2], matrix.shape[-2], min(matrix.shape[-2:])
    order = torch.arange(height).expand([*batch, height])
    exchanges = torch.zeros([*batch, count], dtype=torch.int32)
    info = torch.zeros(batch, dtype=torch.int32)

    def body(turn: Tensor, a: Tensor, order: Tensor, exchanges: Tensor, info: Tensor) -> tuple[Tensor, ...]:
        rows, columns = places_of(a)
        if pivot:
            size = torch.where(rows >= turn, column_of(a, turn).abs(), -1.0)
            chosen = size.argmax(-2)  # of equals the first
        else:
            chosen = turn.expand([*batch, 1])
        place = torch.arange(height)
        swapped = torch.where(place == turn, chosen, torch.where(place == chosen, turn, place))
        a = torch.gather(a, -2, swapped.unsqueeze(-1).expand(a.shape))
        order = torch.gather(order, -1, swapped)
        exchanges = torch.where(torch.arange(count) == turn, (chosen + 1).to(torch.int32), exchanges)
        corner = column_of(row_of(a, turn), turn)
        missing = (corner == 0).reshape(batch)
        info = torch.where(missing & (info == 0), (turn + 1).to(torch.int32), info)
        below = rows > turn
        factor = column_of(a, turn) / torch.where(corner == 0, 1.0, corner)
        a = torch.where(below & (columns == turn), factor, a)
        a = torch.where(below & (columns > turn), a - factor * row_of(a, turn), a)
        return a, order, exchanges, info

    if not matrix.numel():
        return matrix.clone(), exchanges, info, order
    a, order, exchanges, info = run_turns(count, body, (matrix, order, exchanges, info))
    return a, exchanges, info, order


def order_of(exchanges: Tensor, height: int) -> Tensor:
    """Returns the order of rows that exchanges lead to."""
    order = torch.arange(height).expand([*exchanges.shape[:-1], height])

    def body(turn: Tensor, order: Tensor, exchanges: Tensor) -> tuple[Tensor, ...]:
        other = exchanges.index_select(-1, turn.reshape(1)).to(torch.int64) - 1
        place = torch.arange(height)
        swapped = torch.where(place == turn, other, torch.where(place == other, turn, place))
        return (torch.gather(order, -1, swapped),)

    return run_turns(exchanges.shape[-1], body, (order,), (exchanges,))[0]


def solve_triangle(matrix: Tensor, right: Tensor, *, upper: bool, unit: bool = False) -> Tensor:
    """Solves ``triangle(matrix) x = right`` row by row, from the corner of the triangle on."""
    size = matrix.shape[-1]
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    a = matrix.expand([*batch, *matrix.shape[-2:]])
    x = right.expand([*batch, *right.shape[-2:]])

    def body(turn: Tensor, x: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        at = size - 1 - turn if upper else turn
        rows = torch.arange(size).unsqueeze(-1)
        found = row_of(x, at)
        if not unit:
            found = found / column_of(row_of(a, at), at)
        left = rows < at if upper else rows > at
        x = torch.where(left, x - column_of(a, at) * found, x)
        return (torch.where(rows == at, found, x),)

    return run_turns(size, body, (x,), (a,))[0]


def cholesky_factor(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the lower factor and info; NaN from the first turn on whose pivot is not positive."""
    batch, size = matrix.shape[:-2], matrix.shape[-1]
    info = torch.zeros(batch, dtype=torch.int32)

    def body(turn: Tensor, a: Tensor, info: Tensor) -> tuple[Tensor, ...]:
        rows, columns = places_of(a)
        corner = column_of(row_of(a, turn), turn)
        missing = ~(corner > 0).reshape(batch)
        info = torch.where(missing & (info == 0), (turn + 1).to(torch.int32), info)
        root = torch.sqrt(corner)
        column = column_of(a, turn) / root
        rest = a - column * column.transpose(-1, -2)
        a = torch.where((rows > turn) & (columns > turn), rest, a)
        a = torch.where((columns == turn) & (rows > turn), column, a)
        return torch.where((columns == turn) & (rows == turn), root, a), info

    factor, info = run_turns(size, body, (matrix.tril() + matrix.tril(-1).transpose(-1, -2), info))
    return factor.tril(), info


# --- PyTorch's ops ---


def _lu_factor(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    return lu_factors(a, pivot=pivot)[:3]


def _permutation(order: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix P of P L U = A: row order[k] of A is row k of L U."""
    return (torch.arange(order.shape[-1]).unsqueeze(-1) == order.unsqueeze(-2)).to(dtype)


def _triangles(factors: Tensor) -> tuple[Tensor, Tensor]:
    count = min(factors.shape[-2:])
    lower = factors[..., :, :count].tril(-1)
    on_diagonal = torch.arange(factors.shape[-2]).unsqueeze(-1) == torch.arange(count)
    return torch.where(on_diagonal, 1.0, lower).to(factors.dtype), factors[..., :count, :].triu()


def _lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    factors, _, _, order = lu_factors(a, pivot=pivot)
    if not pivot:
        return torch.empty(0, dtype=a.dtype), *_triangles(factors)
    return _permutation(order, a.dtype), *_triangles(factors)


def _lu_unpack(
    factors: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = torch.empty(0, dtype=factors.dtype)
    order = order_of(pivots, factors.shape[-2]) if unpack_pivots else None
    permutation = nothing if order is None else _permutation(order, factors.dtype)
    lower, upper = _triangles(factors) if unpack_data else (nothing, nothing)
    return permutation, lower, upper


def _solve_factored(factors: Tensor, order: Tensor, right: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(factors.shape[:-2], right.shape[:-2])
    rows = right.expand([*batch, *right.shape[-2:]])
    place = order.unsqueeze(-1).expand([*batch, *right.shape[-2:]])
    return solve_triangle(
        factors, solve_triangle(factors, torch.gather(rows, -2, place), upper=False, unit=True), upper=True
    )


def _lu_solve(factors: Tensor, pivots: Tensor, right: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:  # x A = b is A' x' = b'
        turned = _lu_solve(factors, pivots, right.transpose(-1, -2), left=True, adjoint=not adjoint)
        return turned.transpose(-1, -2)
    order = order_of(pivots, factors.shape[-2])
    if not adjoint:
        return _solve_factored(factors, order, right)
    turned = factors.transpose(-1, -2)
    found = solve_triangle(turned, solve_triangle(turned, right, upper=False), upper=True, unit=True)
    back = torch.sort(order, dim=-1)[1]
    place = back.unsqueeze(-1).expand([*torch.broadcast_shapes(back.shape[:-1], found.shape[:-2]), *found.shape[-2:]])
    return torch.gather(found.expand(place.shape), -2, place)


def _solve(
    a: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    vector = right.dim() == 1 or (right.dim() == a.dim() - 1 and right.shape == a.shape[:-1])
    b = right.unsqueeze(-1) if vector else right
    matrix = a if left else a.transpose(-1, -2)
    factors, exchanges, info, order = lu_factors(matrix)
    found = _solve_factored(factors, order, b if left else b.transpose(-1, -2))
    found = found if left else found.transpose(-1, -2)
    return found.squeeze(-1) if vector else found, factors, exchanges, info


def _inverse(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    factors, _, info, order = lu_factors(a)
    return _solve_factored(factors, order, torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape)), info


def _cholesky_with_info(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    factor, info = cholesky_factor(a.transpose(-1, -2) if upper else a)
    return (factor.transpose(-1, -2) if upper else factor), info


def _cholesky(a: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_with_info(a, upper=upper)[0]


def _cholesky_solve(right: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.transpose(-1, -2) if upper else factor
    half = solve_triangle(lower, right, upper=False)
    return solve_triangle(lower.transpose(-1, -2), half, upper=True)


def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_solve(torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape), factor, upper)


def _solve_triangular(
    a: Tensor, right: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    if left:
        return solve_triangle(a, right, upper=upper, unit=unitriangular)
    turned = solve_triangle(a.transpose(-1, -2), right.transpose(-1, -2), upper=not upper, unit=unitriangular)
    return turned.transpose(-1, -2)


def _triangular_solve(
    right: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    matrix = a.transpose(-1, -2) if transpose else a
    return solve_triangle(matrix, right, upper=upper != transpose, unit=unitriangular), a.clone()


def _checked_inverse(a: Tensor) -> Tensor:
    return _inverse(a)[0]


def _checked_tensor_inverse(a: Tensor, ind: int = 2) -> Tensor:
    first, rest = a.shape[:ind], a.shape[ind:]
    return _inverse(a.reshape(math.prod(first), math.prod(rest)))[0].reshape([*rest, *first])


def _checked_cholesky(a: Tensor, *, upper: bool = False) -> Tensor:
    return _cholesky_with_info(a, upper=upper)[0]


def _checked_lu_factor(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor]:
    return lu_factors(a, pivot=pivot)[:2]


def _checked_solve(a: Tensor, right: Tensor, *, left: bool = True) -> Tensor:
    return _solve(a, right, left=left)[0]


CHECKED: dict[Any, Callable[..., Any]] = {
    aten.linalg_inv.default: _checked_inverse,
    aten.inverse.default: _checked_inverse,
    aten.linalg_tensorinv.default: _checked_tensor_inverse,
    aten.linalg_cholesky.default: _checked_cholesky,
    aten.linalg_lu_factor.default: _checked_lu_factor,
    aten.linalg_solve.default: _checked_solve,
}
"""Ops that PyTorch itself writes out with a check of ``info``, which would be a side effect of the graph."""

TABLE: dict[Any, Callable[..., Any]] = {
    **CHECKED,
    aten.linalg_lu_factor_ex.default: _lu_factor,
    aten.linalg_lu.default: _lu,
    aten.lu_unpack.default: _lu_unpack,
    aten.linalg_lu_solve.default: _lu_solve,
    aten._linalg_solve_ex.default: _solve,
    aten.linalg_inv_ex.default: _inverse,
    aten.linalg_cholesky_ex.default: _cholesky_with_info,
    aten.cholesky.default: _cholesky,
    aten.cholesky_solve.default: _cholesky_solve,
    aten.cholesky_inverse.default: _cholesky_inverse,
    aten.linalg_solve_triangular.default: _solve_triangular,
    aten.triangular_solve.default: _triangular_solve,
}
"""By overload."""
