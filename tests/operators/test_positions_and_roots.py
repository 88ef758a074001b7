"""Operators whose usual decomposition is wrong at an edge: the last position, replaced infinities, roots."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import lowerkit
from lowerkit.errors import UnsupportedError


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def written(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results = [x.clone() for _ in range(4)]
    results[0][:, -1] = 0.0
    results[1][:, -1, 1:] = x[:, 0, 1:]
    results[2][..., -1] = 2.0
    results[3][-1] = 3.0
    return (
        *results,
        torch.select_scatter(x, x[:, 0] * 0 + 1, 1, -1),
        torch.select_scatter(x, x[..., 1] * 0 + 1, -1, -1),
        torch.select_scatter(x, x[:, 0] * 0 + 1, 1, -4),
    )


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_writes_to_the_last_position(axis: int | None) -> None:
    shape = [5, 4, 3]
    open_dims = None if axis is None else ({axis: Dim("n", min=4, max=32)} if axis == 1 else {axis: Dim.AUTO},)
    compiled: Any = lowerkit.compile(Function(written), (torch.randn(shape),), dynamic_shapes=open_dims)
    for extent in (5, 4, 7) if axis is not None else (5,):
        x = torch.randn([extent if place == axis else size for place, size in enumerate(shape)])
        for place, (found, expected) in enumerate(zip(compiled(x), written(x), strict=True)):
            np.testing.assert_array_equal(found, expected.numpy(), err_msg=f"output {place}, extent {extent}")


def replaced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    infinity = math.inf
    return (
        torch.nan_to_num(x),
        torch.nan_to_num(x, nan=infinity, posinf=3.0),
        torch.nan_to_num(x, nan=-infinity, neginf=3.0),
        torch.nan_to_num(x, posinf=-infinity, neginf=5.0),
        torch.nan_to_num(x, 1.5, 2.5, 3.5),
    )


def roots(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x**0.5, x**-0.5, torch.pow(x, 0.5), x.abs() ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", [replaced, roots])
def test_special_values(function: Callable[[torch.Tensor], Any], dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -4.0, 2.0, 0.25] * 4, dtype=dtype)
    compiled: Any = lowerkit.compile(Function(function), (x,))
    for place, (found, expected) in enumerate(zip(compiled(x), function(x), strict=True)):
        want = expected.float().numpy()
        have = np.asarray(found).astype(np.float32) if dtype != torch.bfloat16 else found.astype(np.float32)
        np.testing.assert_allclose(have, want, rtol=1e-2 if dtype == torch.bfloat16 else 1e-3, err_msg=str(place))
        signed = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(have)[signed], np.signbit(want)[signed], err_msg=str(place))


def test_antialiased_resizing_of_bytes_is_refused() -> None:
    """Eager's kernel for bytes has other weights; it was computed in floats, and given as floats."""
    model = Function(lambda x: nn.functional.interpolate(x, (5, 5), mode="bilinear", antialias=True))
    with pytest.raises(UnsupportedError, match="LK4001"):
        lowerkit.compile(model, (torch.zeros(1, 1, 3, 3, dtype=torch.uint8),))


def reciprocals(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x**-3, x**-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_reciprocal_powers_whose_products_leave_the_range(dtype: torch.dtype) -> None:
    """The cube of 3e13 is infinite in f32, its reciprocal is not 0."""
    largest = torch.finfo(dtype).max
    x = torch.tensor([largest ** (1 / 3), largest ** (1 / 4), 2.0, -3.0], dtype=torch.float64)
    x = torch.cat([x, -1.7 * x, 1 / x, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])]).to(dtype)
    model = Function(reciprocals)
    compiled: Any = lowerkit.compile(model, (x,))
    for ours, eager in zip(compiled(x), model(x), strict=True):
        np.testing.assert_allclose(
            ours, eager, rtol=8 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        )
