"""Factorizations of matrices and what is solved with them, compiled, against eager by gate A."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, linalg
from torch.utils import _pytree as pytree

import lowerkit
from lowerkit.errors import UnsupportedError
from tests.operators.test_decompositions import Function, holds


def positive(*shape: int) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64)
    return (x @ x.mT + torch.eye(shape[-1])).float()


SQUARE: dict[str, Callable[[Tensor], Any]] = {
    "inverse, determinant and negative power": lambda a: (linalg.inv(a), linalg.det(a), linalg.matrix_power(a, -2)),
    "lu": lambda a: linalg.lu(a),
    "solve, from either side, and a vector": lambda a: (
        linalg.solve(a, a[..., :2] * 2),
        linalg.solve(a, a[..., :2, :] * 2, left=False),
        linalg.solve(a, a[..., 0] + 1),
    ),
    "lu_solve, adjoint too": lambda a: tuple(
        linalg.lu_solve(*linalg.lu_factor(a), a[..., :3] + 1, adjoint=adjoint) for adjoint in (False, True)
    ),
    "product of reflectors": lambda a: linalg.householder_product(*torch.geqrf(a)),
    "singular values and condition": lambda a: (linalg.svdvals(a), linalg.cond(a)),
}
POSITIVE: dict[str, Callable[[Tensor], Any]] = {
    "cholesky, upper too, and cholesky_solve": lambda a: (
        linalg.cholesky(a),
        linalg.cholesky(a, upper=True),
        torch.cholesky_solve(a[..., :2] + 1, linalg.cholesky(a)),
    ),
    "eigenvalues": linalg.eigvalsh,
}
OBLONG: dict[str, Callable[[Tensor], Any]] = {
    "qr, complete too": lambda a: (*linalg.qr(a), *linalg.qr(a, mode="complete")),
    "reflectors": torch.geqrf,
    "lu factors": lambda a: linalg.lu_factor_ex(a),
    "pseudo-inverse": linalg.pinv,
    "rank and nuclear norm": lambda a: (linalg.matrix_rank(a), linalg.matrix_norm(a, "nuc")),
}


DETERMINANTS: dict[str, Callable[[Tensor], Any]] = {
    "det": linalg.det,
    "slogdet": lambda a: tuple(linalg.slogdet(a)),
    "logdet": torch.logdet,
}


@pytest.mark.parametrize("name", ["det", "slogdet", pytest.param("logdet", marks=pytest.mark.exhaustive)])
def test_determinants_whose_pivots_are_zero(name: str) -> None:
    orders = torch.stack([torch.eye(5)[torch.randperm(5)] for _ in range(6)])
    singular = torch.stack([torch.zeros(3, 3), torch.ones(3, 3), torch.eye(3).flip(0)])
    holds(
        lambda *matrices: tuple(pytree.tree_leaves([DETERMINANTS[name](matrix) for matrix in matrices])),
        orders * torch.randint(1, 4, (6, 5, 1)),
        singular,
        torch.empty(2, 0, 0),
    )


@pytest.mark.parametrize("name", SQUARE)
def test_of_a_square_matrix(name: str) -> None:
    """Well conditioned, yet with rows that have to be exchanged."""
    a = torch.randn(2, 7, 7) + 3 * torch.eye(7).roll(1, 0)
    holds(SQUARE[name], a)


@pytest.mark.parametrize("name", POSITIVE)
def test_of_a_positive_matrix(name: str) -> None:
    holds(POSITIVE[name], positive(2, 6, 6))


@pytest.mark.parametrize("shape", [(7, 4), (2, 3, 6)], ids=str)
@pytest.mark.parametrize("name", OBLONG)
def test_of_an_oblong_matrix(name: str, shape: tuple[int, ...]) -> None:
    holds(OBLONG[name], torch.randn(shape))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_triangles(upper: bool, left: bool) -> None:
    a, b = torch.randn(5, 5) + 4 * torch.eye(5), torch.randn(3, 5, 5)
    holds(
        lambda a, b: (
            linalg.solve_triangular(a, b, upper=upper, left=left),
            linalg.solve_triangular(a * 0.3, b, upper=upper, left=left, unitriangular=True),
        ),
        a,
        b,
    )


def test_info_says_where_there_is_no_pivot() -> None:
    singular = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
    indefinite = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for function, a in (
        (lambda a: linalg.inv_ex(a).info, singular),
        (lambda a: linalg.cholesky_ex(a).info, indefinite),
    ):
        compiled = lowerkit.compile(Function(function).eval(), (torch.eye(3),))
        assert int(compiled(a)) == int(function(a)) > 0


def test_vectors_that_are_not_unique_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="svd"):
        lowerkit.compile(Function(lambda a: linalg.svd(a).U).eval(), (torch.randn(4, 3),))


def test_a_large_matrix_is_as_short_a_program_as_a_small_one() -> None:
    small, large = (lowerkit.compile(Function(linalg.inv).eval(), (torch.eye(size),)) for size in (3, 120))
    assert len(small.session.program.steps) == len(large.session.program.steps)
    a = positive(120, 120)
    found = large(a)
    np.testing.assert_allclose(found @ a.numpy(), np.eye(120), atol=1e-3)


def test_qr_of_columns_whose_squares_leave_the_type() -> None:
    module = Function(lambda a: (*torch.linalg.qr(a), *torch.geqrf(a)))
    compiled = lowerkit.compile(module, (torch.randn(5, 4),))
    for scale in (1e21, 1e-21, 1e-30):
        a = torch.randn(5, 4) * scale
        for found, wanted in zip(compiled.session.run(a), module(a.double()), strict=True):
            atol = 1e-6 * float(wanted.abs().max())
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=atol, err_msg=str(scale))


def test_a_matrix_without_an_inverse_of_numbers() -> None:
    compiled = lowerkit.compile(Function(torch.linalg.pinv), (torch.randn(5, 4),))
    for lost in (float("nan"), float("inf")):
        a = torch.randn(5, 4)
        a[1, 2] = lost
        assert np.isnan(compiled.session.run(a)[0]).all(), lost
