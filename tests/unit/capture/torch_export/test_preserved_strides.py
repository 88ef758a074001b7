"""``as_strided`` of what an operator made reads it as it lies in eager's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import lowerkit
from lowerkit.errors import UnsupportedError

MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "running least": lambda x: torch.cummin(x, 0)[0],
    "places": lambda x: torch.cummax(x, 1)[1],
    "inverse": torch.linalg.inv,
    "factor": lambda x: torch.linalg.qr(x)[1],
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(2)),
    "signs": lambda x: torch.copysign(x, -x),
    "elementwise": lambda x: torch.relu(x) + 1,
    "a view of one": lambda x: torch.cummin(x, 0)[0].t(),
    "a write in place": lambda x: torch.cummin(x, 0)[0].add_(1),
    "dropped out": lambda x: functional.dropout(torch.cummin(x, 0)[0], training=False),
    "a view of the input": lambda x: x.t(),
    "a copy": lambda x: x.contiguous(),
}


class Strided(nn.Module):
    def __init__(self, maker: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.maker = maker

    def forward(self, x: torch.Tensor) -> Any:
        made = self.maker(x)
        return made, torch.as_strided(made, (3, 1), (1, 2), 1), torch.as_strided_copy(made, (2, 1), (1, 2), 1)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_result_is_read_as_it_lies(name: str, transposed: bool) -> None:
    model = Strided(MAKERS[name])
    x = torch.tensor([[0.1, 0.5], [0.3, 0.7]])
    x = x.t() if transposed else x
    compiled: Any = lowerkit.compile(torch.export.export(model, (x,)))
    for ours, eager in zip(compiled(x), model(x), strict=True):
        np.testing.assert_allclose(ours, eager.numpy(), rtol=1e-5, atol=1e-6)


class Chosen(nn.Module):
    """A view in eager; the exported program looks ``x[j]`` up."""

    def __init__(self, place: int | None) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: torch.Tensor, j: torch.Tensor) -> Any:
        return [
            torch.as_strided(chosen, (3, 2), (2, 2), self.place)
            for chosen in (x[j], x[:, j + 1].t(), x[j, j - 1], x[j].relu())
        ]


@pytest.mark.parametrize("j", [0, 1, -1])
def test_a_named_place_behind_a_lookup_is_one_of_the_tensor(j: int) -> None:
    model, x, index = Chosen(1), torch.randn(3, 4, 2), torch.tensor(j)
    compiled: Any = lowerkit.compile(model, (x, torch.tensor(0)))
    for ours, eager in zip(compiled(x, index)[:3], model(x, index)[:3], strict=True):
        np.testing.assert_array_equal(ours, eager.numpy())


def test_a_place_that_the_index_tells_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"places in memory of x\[j\]") as error:
        lowerkit.compile(Chosen(None), (torch.randn(9, 4, 2), torch.tensor(0)))
    assert error.value.code == "LK4001"
    assert str(error.value).count("aten.as_strided") == 3, "but not the reader of what relu computed"
