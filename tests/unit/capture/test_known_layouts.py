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
