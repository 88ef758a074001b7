"""Cases of ``torch_cases``: reads and writes by index, order statistics and counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as fn

from tests.support.torch_cases import IMAGE, POSITIVE, ROW, SIGNED, Case, X, integers, normal

# Places of which no two are the same: PyTorch does not say which of two writes to one place stands.
DISTINCT = torch.stack([integers(3, 7, high=2), integers(3, 7, low=2)], 1)
EVEN = normal(2, 3, 8, 6)
HOLED = X.masked_fill(X > 1, float("nan"))


def _put_two(x: Tensor, i: Tensor, j: Tensor, updates: Tensor) -> Tensor:
    return x.index_put((i, j), updates, accumulate=True)


def _scatter_slices(x: Tensor, i: Tensor, updates: Tensor) -> Tensor:
    return x.scatter(1, i[None, :, None].expand(3, 2, 7), updates)


def _scatter_reduce(reduce: str, include_self: bool) -> Callable[..., Tensor]:
    return lambda x, i, u: x.scatter_reduce(0 if x.dim() == 2 else 1, i, u, reduce, include_self=include_self)


def _reads() -> list[Case]:
    three = (X, integers(4, 1, high=3), integers(2))
    return [
        Case("index-two-apart", lambda x, i: x[i, :, i], (X, integers(4, low=-3, high=3)), ("gather",)),
        Case("index-three-broadcast", lambda x, i, j: x[i, j, 1], three, ("gather",)),
        Case("index-by-none", lambda x: x[None, None], (normal(),)),
        Case("take", torch.take, (X, integers(4, 3, low=-105, high=105)), ("gather",)),
        Case("grid-sample", lambda x, g: fn.grid_sample(x, g, align_corners=False), (IMAGE, normal(2, 3, 4, 2))),
        Case("im2col", lambda x: fn.unfold(x, (3, 2), padding=1, stride=2), (IMAGE,)),
    ]


def _writes() -> list[Case]:
    one, two = torch.tensor([1]), torch.tensor([2, -3])
    every_other = torch.tensor([True, False, True])
    added = (X, integers(3, 4, 7), normal(3, 4, 7))
    return [
        Case("index-put", lambda x, i, u: x.index_put((i,), u), (X, two, normal(2, 5, 7)), ("scatter",)),
        Case("index-put-two", _put_two, (X, integers(6, high=3), integers(6), normal(6, 7)), ("scatter",)),
        Case("index-put-mask", lambda x, u: x.index_put((x > 0,), u), (X, normal(1))),
        Case(
            "index-put-mask-each", lambda x, m, u: x.index_put((m,), u), (X, every_other, normal(2, 5, 7)), ("gather",)
        ),
        Case(
            "scatter-an-even-number-of-bools",
            lambda x, i: (x > 0).scatter(1, i, -2),
            (normal(3, 6), integers(3, 4)),
            ("scatter",),
        ),
        Case("index-add", lambda x, i, u: x.index_add(1, i, u), (X, integers(4), normal(3, 4, 7)), ("scatter",)),
        Case("index-copy", lambda x, i, u: x.index_copy(0, i, u), (X, one, normal(1, 5, 7)), ("scatter",)),
        Case("index-fill", lambda x, i: x.index_fill(2, i, -1.5), (X, integers(3)), ("scatter",)),
        Case("masked-scatter", lambda x, u: x.masked_scatter(x > 0, u), (X, normal(200)), ("gather",)),
        Case("scatter", lambda x, i, u: x.scatter(1, i, u), (X, DISTINCT, normal(3, 2, 7)), ("scatter",)),
        Case("scatter-value", lambda x, i: x.scatter(1, i, 2.5), (X, DISTINCT), ("scatter",)),
        Case("scatter-slices", _scatter_slices, (X, torch.tensor([4, 0]), normal(3, 2, 7)), ("scatter",)),
        Case("scatter-add", lambda x, i, u: x.scatter_add(1, i, u), added, ("scatter",)),
        *(
            Case(f"scatter-{word}-{kept}", _scatter_reduce(word, kept), added, ("scatter",))
            for word in ("sum", "prod", "mean", "amax", "amin")
            for kept in (True, False)
        ),
        Case("scatter-mean-int", _scatter_reduce("mean", True), (SIGNED, integers(4, 5, high=4), SIGNED)),
        Case("put", lambda x, i, u: x.put(i, u, True), (X, integers(9, high=105), normal(9)), ("scatter",)),
        Case("col2im", lambda x: fn.fold(x, (5, 6), (2, 3), stride=(1, 3)), (normal(2, 18, 8),), ("scatter",)),
        Case("max-unpool", lambda x: fn.max_unpool2d(*fn.max_pool2d(x, 2, return_indices=True), [2, 2]), (EVEN,)),
        Case("histc", lambda x: torch.histc(x, 7, -1.0, 1.5), (X,), ("scatter",)),
    ]


def _orders() -> list[Case]:
    ordered = ROW.sort().values
    return [
        Case("median", lambda x: torch.median(x, 1), (X,), ("sort",)),
        Case("median-nan", torch.median, (HOLED,), ("sort",)),
        Case("nanmedian", lambda x: torch.nanmedian(x, 1), (HOLED,), ("sort",)),
        Case("kthvalue", lambda x: torch.kthvalue(x, 2, 2, keepdim=True), (X,), ("sort",)),
        Case("searchsorted", torch.searchsorted, (ordered, HOLED)),
        Case("searchsorted-right", lambda b, x: torch.searchsorted(b, x, right=True), (ordered, HOLED)),
        Case("cdist", torch.cdist, (X, normal(3, 4, 7)), ("reduce",)),
        Case("fmin", torch.fmin, (HOLED, ROW)),
        Case("fmax", torch.fmax, (HOLED, ROW)),
        Case("hypot", torch.hypot, (X * 1e30, normal(5, 1))),
        Case("copysign", torch.copysign, (X, torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -float("inf"), 3.0]))),
        Case("lerp-tensor", torch.lerp, (X, ROW, POSITIVE)),
        Case("lerp-rank-0", lambda x, y: torch.lerp(x, y, 0.7), (normal(), ROW)),
        Case("fill", lambda x: torch.fill(x, x[0, 0, 0]), (X,)),
        Case("cross-entropy", lambda x, i: fn.cross_entropy(x, i), (normal(4, 6), integers(4))),
        Case("std-of-one", lambda x: x[:, :1].std(1), (X,)),
        Case("broadcast-tensors", lambda x, y: torch.broadcast_tensors(x, y > 0), (X, ROW)),
    ]


def index_cases() -> list[Case]:
    """Returns the cases."""
    return [*_reads(), *_writes(), *_orders()]
