"""Singular values and eigenvalues by one-sided Jacobi rotations, in float64; vectors where no sign of theirs shows.

Vocabulary
    round   one turn: columns stand in two halves and each pair (left, right) is rotated until it is orthogonal. Then
            columns move one place, all but the first, so that after n - 1 rounds each has met each other.
    sweep   n - 1 rounds. Rotations end when a sweep has found no pair to rotate, or after :data:`_SWEEPS`.

Formulas: Hestenes 1958; Brent and Luk 1985 for the order; Golub and Van Loan, 8.6.3. The vectors of ``svd`` and
``eigh`` are not unique, and PyTorch's choice is LAPACK's: those stay unsupported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.while_loops import run_while
from lowerkit.capture.torch_export.operators import aten

_SWEEPS = 40
_ORTHOGONAL = 1e-15
"""Cosine of two columns from which on they count as orthogonal."""


def _moved(left: Tensor, right: Tensor) -> Tensor:
    """Columns one place further: the left half to the right, the right half to the left; the first stays."""
    if left.shape[-1] == 1:
        return torch.cat([left, right], -1)
    return torch.cat([left[..., :1], right[..., :1], left[..., 1:-1], right[..., 1:], left[..., -1:]], -1)


def _rotated(a: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One round; also returns whether any pair was rotated."""
    half = a.shape[-1] // 2
    left, right = a[..., :half], a[..., half:]
    one, other = (left * left).sum(-2, keepdim=True), (right * right).sum(-2, keepdim=True)
    product = (left * right).sum(-2, keepdim=True)
    turning = product.abs() > _ORTHOGONAL * torch.sqrt(one * other)
    ratio = (other - one) / (2 * torch.where(turning, product, 1.0))
    tangent = torch.where(ratio >= 0, 1.0, -1.0) / (ratio.abs() + torch.sqrt(1 + ratio * ratio))
    tangent = torch.where(turning, tangent, 0.0)
    cosine = 1 / torch.sqrt(1 + tangent * tangent)
    sine = cosine * tangent

    def turned(matrix: Tensor) -> Tensor:
        first, second = matrix[..., :half], matrix[..., half:]
        return _moved(cosine * first - sine * second, sine * first + cosine * second)

    return turned(a), turned(v), turning.any()


def _orthogonal_columns(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ``matrix @ v`` with orthogonal columns, and the orthogonal ``v``; both float64."""
    size = matrix.shape[-1]
    even = size + size % 2
    a = torch.nn.functional.pad(matrix.to(torch.float64), (0, even - size))
    v = torch.eye(size, even, dtype=torch.float64).expand([*matrix.shape[:-2], size, even])
    if size < 2:
        return a[..., :size], v[..., :size]
    rounds = even - 1

    def more(turn: Tensor, quiet: Tensor, a: Tensor, v: Tensor) -> Tensor:
        return (quiet < rounds) & (turn < rounds * _SWEEPS)

    def body(turn: Tensor, quiet: Tensor, a: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        a, v, turning = _rotated(a, v)
        return turn + 1, torch.where(turning, 0, quiet + 1), a, v

    zero = torch.zeros((), dtype=torch.int64)
    start = (zero, zero.clone(), a.clone(), v.clone())
    _, _, a, v = run_while(more, body, start, ())
    return a, v


def _tall(matrix: Tensor) -> Tensor:
    return matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.transpose(-1, -2)


def _values(matrix: Tensor) -> Tensor:
    """Singular values in float64, the largest first."""
    tall = _tall(matrix)
    if not tall.numel():
        return torch.zeros([*matrix.shape[:-2], min(matrix.shape[-2:])], dtype=torch.float64)
    columns, _ = _orthogonal_columns(tall)
    found = torch.sqrt((columns * columns).sum(-2))
    return torch.sort(found, dim=-1, descending=True)[0][..., : tall.shape[-1]]


def _svd(
    a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if compute_uv:
        return NotImplemented
    return torch.empty(0, dtype=a.dtype), _values(a).to(a.dtype), torch.empty(0, dtype=a.dtype)


def _symmetric(a: Tensor, triangle: str) -> Tensor:
    wide = a.to(torch.float64)
    kept = wide.tril() if triangle.upper() == "L" else wide.triu()
    other = wide.tril(-1) if triangle.upper() == "L" else wide.triu(1)
    return kept + other.transpose(-1, -2)


def _eigenvalues(a: Tensor, triangle: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues of a symmetric matrix: its singular values once a multiple of I has made all of them positive."""
    if compute_v:
        return NotImplemented
    full = _symmetric(a, triangle)
    shift = torch.linalg.vector_norm(full, 2, dim=(-2, -1), keepdim=True)
    values = _values(full + shift * torch.eye(a.shape[-1], dtype=torch.float64)) - shift.squeeze(-1)
    return torch.flip(values, [-1]).to(a.dtype), torch.empty(0, dtype=a.dtype)


def _pseudo_inverse(
    a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    """V S^-1 U' without the singular values up to ``max(atol, rtol * largest)``.

    ``rtol`` is the machine epsilon times the larger side where neither is given.
    """
    if not a.numel():
        return a.new_zeros([*a.shape[:-2], a.shape[-1], a.shape[-2]])
    matrix = _symmetric(a, "L") if hermitian else a
    tall = _tall(matrix)
    columns, v = _orthogonal_columns(tall)
    squares = (columns * columns).sum(-2, keepdim=True)
    lengths = torch.sqrt(squares)
    largest = lengths.amax(-1, keepdim=True)
    absolute = torch.zeros((), dtype=torch.float64) if atol is None else atol.to(torch.float64)
    default = torch.finfo(a.dtype).eps * max(a.shape[-2:]) if atol is None else 0.0
    relative = torch.full((), default, dtype=torch.float64) if rtol is None else rtol.to(torch.float64)
    if rtol is None and atol is not None:
        relative = torch.where(absolute > 0, 0.0, torch.finfo(a.dtype).eps * max(a.shape[-2:]))
    limit = torch.maximum(absolute[..., None, None], relative[..., None, None] * largest)
    kept = ~(lengths <= limit)  # with a NaN, of which there is no inverse
    scaled = torch.where(kept, columns / torch.where(kept, squares, 1.0), 0.0)
    found = torch.matmul(v, scaled.transpose(-1, -2))
    found = found if matrix.shape[-2] >= matrix.shape[-1] else found.transpose(-1, -2)
    return found.to(a.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten._linalg_svd.default: _svd,
    aten._linalg_eigh.default: _eigenvalues,
    aten.linalg_pinv.atol_rtol_tensor: _pseudo_inverse,
}
"""By overload."""
