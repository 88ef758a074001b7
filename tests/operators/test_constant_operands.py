"""Ops on constant tensors: torch-mlir folds them with other numbers than it computes at run time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import lowerkit
from lowerkit.program.dtypes import to_torch

Function = Callable[[torch.Tensor], torch.Tensor]

_SCALARS = (0, 1, -2, 3, 0.5, -1.5)
_OF_SCALAR: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "rsub", "div")},
    **{name: getattr(torch, name) for name in ("remainder", "fmod", "clamp_min", "clamp_max")},
    "where": lambda a, number: torch.where(a > 0, a, number),
    "masked_fill": lambda a, number: a.masked_fill(a > 0, number),
    "alpha": lambda a, number: torch.add(a, number, alpha=2),
}
_UNARY: dict[str, Function] = {
    **{name: getattr(torch, name) for name in ("neg", "abs", "sqrt", "exp", "floor", "round", "sign", "logical_not")},
    **{name: getattr(torch, name) for name in ("any", "all", "amax", "sum", "isnan", "relu", "sigmoid")},
    "to bool": lambda a: a.bool(),
    "to float": lambda a: a.float(),
    "below ones": lambda a: a < torch.ones_like(a),
    "times constant": lambda a: a * torch.full_like(a, 3),
    "other type": lambda a: a + torch.full((3,), 2.5),
}
_CASES: dict[str, Function] = {
    **{
        f"{name} {number}": lambda a, function=function, number=number: function(a, number)
        for name, function in _OF_SCALAR.items()
        for number in _SCALARS
    },
    **_UNARY,
}


class _Functions(torch.nn.Module):
    def __init__(self, functions: list[Function], number: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.functions, self.number, self.dtype = functions, number, dtype

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        constant = torch.full_like(x, self.number, dtype=self.dtype)
        return [function(constant) for function in self.functions]


_NUMBERS: dict[torch.dtype, tuple[float, ...]] = {
    torch.float32: (0, 1, -2, 2.5, math.inf),
    torch.float64: (0, 1, -2, 2.5, math.inf),
    torch.int64: (0, 1, -2),
    torch.int32: (0, 1, -2),
    torch.bool: (0, 1),
}


@pytest.mark.variants("number")
@pytest.mark.parametrize(
    ("dtype", "number"), [(dtype, number) for dtype, numbers in _NUMBERS.items() for number in numbers], ids=str
)
def test_constants_give_what_eager_gives(dtype: torch.dtype, number: float) -> None:
    names: list[str] = []
    for name, function in _CASES.items():
        try:
            function(torch.full((2, 3), number, dtype=dtype))
        except (RuntimeError, TypeError):
            continue  # not for this type
        names.append(name)
    module = _Functions([_CASES[name] for name in names], number, dtype)
    x = torch.zeros(2, 3)
    found: Any = lowerkit.compile(module, (x,))(x)
    for name, have, want in zip(names, found, module(x), strict=True):
        ours = to_torch(np.asarray(have))
        assert ours.dtype == want.dtype, name
        np.testing.assert_allclose(ours.double().numpy(), want.double().numpy(), rtol=1e-6, err_msg=name)
