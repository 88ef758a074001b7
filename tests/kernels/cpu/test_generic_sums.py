"""Long sums in plain loops: as exact as sums in blocks, however many elements there are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.export import Dim
from torch.nn import functional

import lowerkit

Function = Callable[..., torch.Tensor]
CASES: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "variance of all": (lambda x: x.var(), [(30, 4000)]),
    "variance of rows": (lambda x: x.var(-1), [(30, 20000)]),
    "variance of columns": (lambda x: x.var(0, correction=0), [(20000, 3)]),
    "kept dims": (lambda x: x.var((0, 2), keepdim=True), [(200, 3, 50)]),
    "product": (lambda x: x @ x.t(), [(7, 20000)]),
    "contraction": (lambda x, y: torch.einsum("bik,bjk->ij", x, y), [(9, 4, 3000), (9, 5, 3000)]),
    "window": (lambda x, y: functional.conv1d(x, y), [(2, 8, 3000), (4, 8, 2500)]),
    "mean of windows": (lambda x: functional.avg_pool1d(x, 1000), [(2, 2, 3000)]),
}


class Model(torch.nn.Module):
    """A function of tensors."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*tensors)


@pytest.mark.parametrize("name", CASES)
def test_sums_with_open_extents(name: str) -> None:
    function, shapes = CASES[name]
    tensors = tuple(torch.rand(shape) + 0.5 for shape in shapes)
    dims = (tuple(dict.fromkeys(range(value.dim()), Dim.AUTO) for value in tensors),)
    program = torch.export.export(Model(function), tensors, dynamic_shapes=dims, strict=False)
    (found,) = lowerkit.compile(program).session.run(*tensors)
    wanted = function(*(value.double() for value in tensors)).numpy()
    # One rounding of the result, one of each term: the terms are positive.
    bound = 8 * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=bound, atol=0.0)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["cumsum", "cumprod"])
def test_running_sums_and_products(kind: str, axis: int) -> None:
    x = (torch.rand(9000, 3) if axis == 0 else torch.rand(3, 9000)) - 0.2
    x = x if kind == "cumsum" else 1 + (x - 0.3) / 1000
    model = Model(lambda x: getattr(x, kind)(axis))
    (found,) = lowerkit.compile(model, [x]).session.run(x)
    np.testing.assert_array_equal(found, getattr(x.double(), kind)(axis).float())
