"""Values are made to fit what an op is defined on, special ones too; those of other ops stay."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lowerkit.parity.witness.op_domains import fitting

reduce: Any = torch.segment_reduce
SPECIAL = torch.tensor([math.nan, 3.0, -math.inf, 3.4e38, -1.0, math.inf, -3.4e38, 0.0])


def test_boundaries_rise() -> None:
    _, boundaries = fitting("aten.bucketize.Tensor", [SPECIAL, SPECIAL])
    assert (boundaries[1:] >= boundaries[:-1]).all()
    (alone,) = fitting("aten.bucketize.Scalar", [SPECIAL])
    assert torch.equal(alone, boundaries)
    given, _, sorter = fitting("aten.searchsorted.Tensor", [SPECIAL, SPECIAL, torch.zeros(8, dtype=torch.int64)])
    assert (given[sorter][1:] >= given[sorter][:-1]).all()


@pytest.mark.parametrize("value", [torch.randn(2, 3, 3), torch.zeros(3, 3), torch.full((3, 3), -3.4e38)])
def test_matrices_are_positive_definite(value: Tensor) -> None:
    (matrix,) = fitting("aten.linalg_cholesky_ex.default", [value])
    assert not torch.linalg.cholesky_ex(matrix).info.any()


@pytest.mark.parametrize("named", ["lengths", "offsets"])
def test_segments_are_those_of_the_data(named: str) -> None:
    value, said = fitting("aten.segment_reduce.default", [torch.ones(5), torch.tensor([7, 3, -1])])
    assert reduce(value, "sum", **{named: said})[-1] == 5


def test_pivots_exchange_nothing() -> None:
    factors, pivots, right = fitting(
        "aten.linalg_lu_solve.default", [torch.eye(3), torch.tensor([294, -7, 0], dtype=torch.int32), torch.ones(3, 1)]
    )
    assert torch.equal(torch.linalg.lu_solve(factors, pivots, right), right)


def test_no_pole_is_asked_for() -> None:
    for value in (SPECIAL, torch.tensor([-3, 0, 2]), torch.tensor([False, True])):
        (given,) = fitting("aten.polygamma.default", [value])
        wide = given.double()
        assert not ((wide <= 0) & (wide == wide.floor()) & wide.isfinite()).any()


def test_no_division_leaves_the_type() -> None:
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64):
        smallest = torch.tensor([torch.iinfo(dtype).min, -1], dtype=dtype)
        given = fitting("aten.lcm.default", [smallest, smallest.flip(0)])
        assert torch.lcm(*given).dtype == dtype  # eager lives


def test_other_ops_get_what_was_drawn() -> None:
    (given,) = fitting("aten.sin.default", [SPECIAL])
    assert given is SPECIAL
