"""Writes through views that PyTorch does not bring back rightly are refused; others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowerkit
from lowerkit.errors import UnsupportedError
from tests.support.suite.randomness import RANDOM


class Function(nn.Module):
    def __init__(self, write: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return self.write(y), y


OVERLAPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": lambda y: y.expand(2, 4, 3).zero_(),
    "fill": lambda y: y.expand(2, 4, 3)[1:, 1:].fill_(7),
    "masked": lambda y: y.expand(4, 3).masked_fill_(torch.ones(4, 3, dtype=torch.bool), 7),
    "one_row": lambda y: y.expand(4, 3)[2].fill_(7),
    "windows": lambda y: y.unfold(1, 2, 1).fill_(7),
    "windows_apart": lambda y: y.unfold(1, 1, 2).fill_(7),
    "rest": lambda y: y.unfold(1, 2, 2)[0].mul_(7),
    "strided": lambda y: y.as_strided((2, 2), (1, 1)).fill_(7),
    "row_of_windows": lambda y: torch.select_scatter(y.unfold(1, 2, 1), y[:, :2], -1, 1),
    "rows_of_windows": lambda y: torch.slice_scatter(y.unfold(1, 2, 1), y[..., :2, None], -1, 1),
    "diagonal_of_windows": lambda y: torch.diagonal_scatter(y.as_strided((2, 2), (1, 1)), y[0, 1:]),
    "places_of_windows": lambda y: y.as_strided((2, 2), (1, 1)).as_strided_scatter(y[0, 1:], (2,), (1,)),
}
APART: dict[str, Callable[[Tensor], Tensor]] = {
    "not_expanded": lambda y: y.expand(1, 3).zero_(),
    "turned": lambda y: y.t()[1:].fill_(7),
    "windows": lambda y: y.unfold(1, 3, 3).fill_(7),
    "pieces": lambda y: y.as_strided((2,), (2,)).fill_(7),
    "copied": lambda y: y.expand(4, 3).clone().fill_(7),
    "row_of_an_expanded_one": lambda y: torch.select_scatter(y.expand(4, 3), y[0] + 1, 0, 1),
    "row_of_windows": lambda y: torch.select_scatter(y.unfold(1, 3, 3), y[:, :1], 2, 1),
    "row_of_computed_windows": lambda y: torch.select_scatter(y.unfold(1, 2, 1).neg(), y[:, :2], 2, 1),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_refused_with_the_line(name: str) -> None:
    with pytest.raises(UnsupportedError, match="write through an expanded") as error:
        lowerkit.compile(Function(OVERLAPPING[name]), (torch.ones(1, 3),))
    assert error.value.code == "LK4001"
    assert Path(__file__).name in str(error.value)


@pytest.mark.parametrize("name", APART)
def test_written_as_eager_writes(name: str) -> None:
    model, x = Function(APART[name]), torch.from_numpy(RANDOM.standard_normal((1, 3)))
    for have, want in zip(lowerkit.compile(model, (x,))(x), model(x), strict=True):
        np.testing.assert_array_equal(have, want.numpy())
