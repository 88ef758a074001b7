"""Look-ups, writes by index, orders, extremes and products of each element type, with static and with open extents.

An open program is exported once and called at other extents, 0 among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim

import lowerkit
from lowerkit.program.dtypes import to_torch
from tests.operators.test_decompositions import Function

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]


def made(dtype: torch.dtype, *shape: int) -> Tensor:
    """Values over the whole range of small integers, with equal ones among them; of bools both."""
    torch.manual_seed(sum(shape))
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape) * 3).round().to(dtype) / 2
    limits = torch.iinfo(dtype)
    return torch.randint(max(limits.min, -300), min(limits.max, 300) + 1, shape).to(dtype)


def places(limit: int, *shape: int) -> Tensor:
    torch.manual_seed(limit)
    return torch.randint(0, max(limit, 1), shape)


def compiled(function: Callable[..., Any], arguments: tuple[Tensor, ...], shapes: Any = None) -> Any:
    options: dict[str, Any] = {} if shapes is None else {"dynamic_shapes": (shapes,)}
    return lowerkit.compile(Function(function).eval(), arguments, **options)


def agree(session: Any, function: Callable[..., Any], *arguments: Tensor, atol: float = 0) -> None:
    """Every output, but for the rounding of sums."""
    expected = function(*arguments)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for ours, eager in zip(session.session.run(*arguments), expected, strict=True):
        found = to_torch(np.asarray(ours))
        assert found.dtype == eager.dtype
        assert found.shape == eager.shape
        torch.testing.assert_close(found, eager, rtol=1e-2 if eager.dtype is torch.bfloat16 else 1e-6, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather(dtype: torch.dtype) -> None:
    def function(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return (torch.gather(x, 1, i), torch.gather(x, 0, i % 3), torch.take_along_dim(x, i[:1], 1), x.take(i))

    agree(compiled(function, (made(dtype, 3, 5), places(5, 3, 4))), function, made(dtype, 3, 5), places(5, 3, 4))


def test_gather_of_open_extents() -> None:
    def function(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return (torch.gather(x, 1, i), torch.gather(x, 0, i * 0))

    rows, columns, count = Dim("rows", min=0), Dim("columns", min=0), Dim("count", min=0)
    shapes = ({0: rows, 1: columns}, {0: rows, 1: count})
    session = compiled(function, (made(torch.uint8, 3, 5), places(5, 3, 5)), shapes)
    for m, n, k in ((3, 5, 5), (1, 1, 1), (4, 7, 2), (2, 3, 0), (0, 3, 2), (3, 1, 1)):
        agree(session, function, made(torch.uint8, m, n), places(n, m, k))


REDUCTIONS = [(dtype, reduce) for dtype in DTYPES for reduce in ("sum", "prod", "amax", "amin", "mean")]
REDUCTIONS.remove((torch.bool, "mean"))  # eager has none


@pytest.mark.variants("reduce")
@pytest.mark.parametrize(("dtype", "reduce"), REDUCTIONS, ids=str)
@pytest.mark.parametrize("include", [True, False])
def test_scatter_reduce(dtype: torch.dtype, reduce: str, include: bool) -> None:
    def function(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
        return torch.scatter_reduce(x, 1, i, y, reduce, include_self=include)

    arguments = (made(dtype, 3, 5), places(5, 3, 4), made(dtype, 3, 4))
    agree(compiled(function, arguments), function, *arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writes_that_add(dtype: torch.dtype) -> None:
    def function(x: Tensor, i: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.scatter_add(x, 1, i, y),
            torch.index_put(x, (torch.arange(3)[:, None], i), y, accumulate=True),
            torch.index_add(x, 1, i[0], y),
            torch.scatter(x, 1, i, 1),
            torch.masked_scatter(x, x > 0, x.flip(1)),
        )

    arguments = (made(dtype, 3, 5), places(5, 3, 4), made(dtype, 3, 4))
    agree(compiled(function, arguments), function, *arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_orders(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        order = torch.argsort(x, dim=0, descending=True, stable=True)
        found = (*torch.sort(x, dim=1, stable=True), order)
        return found if dtype is torch.bool else (*found, torch.topk(x, 2, 1)[0], torch.kthvalue(x, 2, 1)[0])

    x = made(dtype, 3, 5)
    agree(compiled(function, (x,)), function, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        found = (x.amax(1), x.amin((0, 1)), x.max(), x.min(), *x.max(1), *x.min(0), torch.count_nonzero(x, 1))
        return found if dtype is torch.bool else (*found, x.argmax(1), x.argmin(0), x.argmax(), *x.cummax(1))

    x = made(dtype, 3, 5)
    agree(compiled(function, (x,)), function, x)


@pytest.mark.parametrize("dtype", [kind for kind in DTYPES if kind is not torch.bool], ids=str)
def test_products(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        batch = torch.stack([x, x])
        return (
            x @ y,
            torch.bmm(batch, torch.stack([y, y])),
            torch.addmm(y[:3, :3], x, y[:, :3]),
            torch.addbmm(y[:3], batch, torch.stack([y, y]), beta=2, alpha=3),
            torch.mv(x, y[:, 0]),
            torch.dot(x[0], y[:, 0]),
            torch.einsum("ij,kj->ik", x, x),
            torch.outer(x[0], y[0]),
            torch.linalg.cross(x[:, :3], y[:3, :3]),
        )

    arguments = (made(dtype, 3, 4), made(dtype, 4, 5))
    agree(compiled(function, arguments), function, *arguments)


def test_statistics_of_norms() -> None:
    """What stands beside the values is read; in evaluation a batch norm has none."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        mean, variance = w[:4], w[:4].square()
        return (
            *torch.native_layer_norm(x, [6], w, w, 1e-5),
            *torch.native_group_norm(x, w[:4], None, 3, 4, 6, 2, 1e-5),
            *torch.native_batch_norm(x, mean, None, mean, variance, False, 0.1, 1e-5),
        )

    arguments = (torch.randn(3, 4, 6), torch.randn(6))
    agree(compiled(function, arguments), function, *arguments, atol=1e-5)


def test_reductions_of_other_types_and_of_rank_0() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        positive, one = x > 0, x[0, 0]
        return (
            torch.logsumexp(x, 1),
            torch.prod(positive, 1, dtype=torch.bool),
            torch.sum(positive, 1, dtype=torch.bool),
            *torch.topk(one, 1),
            *torch.sort(one),
            torch.argsort(one),
            torch.ops.aten.copy(y, x),
        )

    arguments = (made(torch.int64, 3, 4), torch.randn(3, 4))
    agree(compiled(function, arguments), function, *arguments)
