"""Bags of embeddings: all four results as eager's kernels have them, and one artifact for bags that begin anywhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowerkit
from lowerkit.capture.torch_export.decompositions.own_table import OWN_DECOMPOSITIONS
from tests.operators.test_decompositions import holds

_BAG = torch.ops.aten.embedding_bag.padding_idx


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sum"},
        {"mode": "mean"},
        {"mode": "mean", "padding_idx": 3},
        {"mode": "max", "padding_idx": 3},
        {"mode": "sum", "include_last_offset": True},
    ],
    ids=str,
)
def test_bags_begin_where_data_says(options: dict[str, Any]) -> None:
    """One artifact, several layouts, empty bags among them."""
    torch.manual_seed(3)
    bags = nn.EmbeddingBag(11, 8, **options).eval()
    indices = torch.tensor([1, 3, 3, 5, 7, 9, 3])
    last = 7 if "include_last_offset" in options else 6
    compiled = lowerkit.compile(bags, (indices, torch.tensor([0, 2, 2, last])))
    for offsets in ([0, 2, 2, last], [0, 1, 2, last], [0, 0, 0, last]):
        expected = bags(indices, torch.tensor(offsets)).detach()
        torch.testing.assert_close(torch.from_numpy(compiled(indices, torch.tensor(offsets))), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("padding", [None, 3, -1])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_all_four_results(mode: int, padding: int | None, dtype: torch.dtype) -> None:
    """What stands behind the values differs with the dtype and the padding; a NaN is a maximum in front alone."""
    table, indices = torch.randn(10, 3, dtype=dtype), torch.tensor([1, 2, 4, 9, 4, 3, 2, 9])
    table[1, 0] = table[4, 1] = math.nan
    table[9] = -math.inf
    weights = torch.rand(8).to(dtype)
    own = OWN_DECOMPOSITIONS[_BAG]
    for ends, offsets in (
        (False, [0, 2, 2, 5]),
        (True, [0, 2, 2, 5, 8]),
        (True, [0, 2, 2, 5, 6]),
        (True, [0, 0, 3, 3]),
    ):
        for scales in (None, weights) if mode == 0 else (None,):
            arguments = (table, indices, torch.tensor(offsets), False, mode, False, scales, ends, padding)
            torch.testing.assert_close(own(*arguments), torch.embedding_bag(*arguments), equal_nan=True)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags_without_a_row(mode: int) -> None:
    arguments = (torch.randn(4, 3), torch.zeros(0, dtype=torch.int64), torch.tensor([0, 0]), False, mode)
    own = OWN_DECOMPOSITIONS[_BAG]
    torch.testing.assert_close(own(*arguments), torch.embedding_bag(*arguments))


@pytest.mark.parametrize(("mode", "padding"), [(0, None), (0, 2), (1, None), (2, 2)])
def test_all_four_results_compiled(mode: int, padding: int | None) -> None:
    def bags(table: Tensor, indices: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
        return torch.embedding_bag(table, indices, offsets, False, mode, False, None, False, padding)

    holds(bags, torch.randn(10, 3), torch.tensor([1, 2, 4, 9, 4, 3, 2, 9]), torch.tensor([0, 2, 2, 5]))


def test_a_bag_for_each_row_and_weights_for_each_sample() -> None:
    bags = nn.EmbeddingBag(11, 8, mode="sum").eval()
    holds(lambda i: bags(i), torch.randint(0, 11, (3, 5)))
    holds(lambda i, w: bags(i, per_sample_weights=w), torch.randint(0, 11, (3, 5)), torch.randn(3, 5))
