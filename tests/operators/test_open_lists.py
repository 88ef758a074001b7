"""Index lists, masks and pieces of tensors whose extents are open: beside the exported program at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import lowerkit
from lowerkit.errors import LowerkitError

Shape = tuple[int, ...]
Function = Callable[..., Tensor | tuple[Tensor, ...]]


def _written(value: Tensor, place: Any, updates: Any) -> Tensor:
    result = value.clone()
    result[place] = updates
    return result


def _added(value: Tensor, places: Any, updates: Tensor) -> Tensor:
    return value.index_put(places, updates, accumulate=True)


def _all(*tensors: Tensor) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


CASES: dict[str, tuple[Function, Sequence[Shape], Sequence[Shape]]] = {
    # Floats are drawn around 0, integers are places in a dim of 3: "i" below.
    "pairs": (lambda x, i, j: (x[i, j], x[:, i, j], x[i, :, j]), [(4, 5, 6)], [(7,), (7,)]),
    "broadcast pair": (lambda x, i, j: x[i[:, None], j], [(4, 5, 6)], [(7,), (8,)]),
    "three": (lambda x, i, j, k: x[i, j, k], [(4, 5, 6)], [(7,), (7,), (7,)]),
    "write by a pair": (
        lambda x, v, i, j: (_written(x, (i, j), v), _written(x, (i, slice(None), j), 2.0)),
        [(4, 5, 6), (7, 6)],
        [(7,), (7,)],
    ),
    "write a number and a row": (
        lambda x, v, i: (_written(x, i, 1.5), _written(x, i, v)),
        [(4, 5), (5,)],
        [(7,)],
    ),
    "add by a pair": (lambda x, v, i, j: _added(x, (i, j), v), [(4, 5, 6), (6,)], [(7,), (7,)]),
    "write the last": (
        lambda x, v: (
            _written(x, (slice(None), -1), v),
            _written(x, (-1, slice(None), -2), 3.0),
            _written(x, (slice(None), slice(-2, None), -1), 3.0),
        ),
        [(4, 5, 6), (4, 6)],
        [],
    ),
    "write by a mask": (lambda x: (_written(x, x > 0.5, 0.0), _written(x, x[:, 0] > 0.5, 0.0)), [(4, 5)], []),
    "grid": (lambda x, g: functional.grid_sample(x, g, align_corners=False), [(2, 3, 5, 6), (2, 4, 7, 2)], []),
    "grid by reflection": (
        lambda x, g: functional.grid_sample(x, g, "bicubic", "reflection", align_corners=True),
        [(2, 3, 5, 6), (2, 4, 7, 2)],
        [],
    ),
    "split": (lambda x: x.split(4, 1)[1], [(3, 7)], []),
    "chunk": (lambda x: _all(*(part * n for n, part in enumerate(x.chunk(3, 0)))), [(8, 5)], []),
    "split by half": (lambda x: x.split(x.shape[1] // 2, 1)[1], [(3, 8)], []),
    "split by sizes": (lambda x: x.split([2, x.shape[0] - 2], 0)[1], [(6, 3)], []),
    "mesh": (
        lambda x: (
            torch.stack(torch.meshgrid(*map(torch.arange, x.shape), indexing="ij")),
            torch.meshgrid(x[0], x[:, 0], indexing="xy")[1] + x,
        ),
        [(4, 5)],
        [],
    ),
    "fold": (lambda x: functional.fold(x, (12, 12), (2, 2), stride=2), [(2, 12, 36)], []),
}
SCALES: Sequence[Callable[[int], int]] = (lambda n: n, lambda n: n + 1, lambda n: n + 2, lambda n: 2 * n, lambda n: 3)


class Model(nn.Module):
    """A function of tensors."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.function(*tensors)


@pytest.mark.parametrize("name", CASES)
def test_open_extents(name: str) -> None:
    function, floats, places = CASES[name]

    def drawn(scale: Callable[[int], int]) -> tuple[Tensor, ...]:
        values = [torch.randn([n if n == 2 else scale(n) for n in shape]) for shape in floats]
        return (*values, *(torch.randint(-3, 3, [scale(n) for n in shape]) for shape in places))

    example = drawn(SCALES[0])
    dims = tuple({axis: Dim.AUTO for axis, n in enumerate(value.shape) if n != 2} for value in example)
    program = torch.export.export(Model(function), example, dynamic_shapes=(dims,), strict=False)
    model = lowerkit.compile(program)
    runs = 0
    for scale in SCALES:
        tensors = drawn(scale)
        try:
            wanted = program.module()(*tensors)
        except (AssertionError, RuntimeError):
            with pytest.raises(LowerkitError, match="LK8004"):
                model.session.run(*tensors)
            continue
        found = model.session.run(*tensors)
        for ours, eager in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            np.testing.assert_allclose(np.asarray(ours), eager, rtol=1e-4, atol=1e-5)
        runs += 1
    assert runs >= (1 if name == "fold" else 2)


@pytest.mark.parametrize("shape", [(6,), (3, 2), (2, 1, 3), (1, 6), (-1, 3)])
def test_views_whose_extents_are_stated(shape: Shape) -> None:
    program = torch.export.export(
        Model(lambda x: x.reshape(shape) * 2), (torch.randn(2, 3),), dynamic_shapes=(({0: Dim.AUTO, 1: Dim.AUTO},),)
    )
    x = torch.randn(2, 3)
    np.testing.assert_array_equal(lowerkit.compile(program).session.run(x)[0], x.reshape(shape) * 2)


def test_running_maximum_and_rolls_of_nothing() -> None:
    program = torch.export.export(
        Model(lambda x: x.cummax(-1)[0] + x.roll(1, 2)), (torch.randn(0, 1, 3),), dynamic_shapes=(({2: Dim.AUTO},),)
    )
    assert lowerkit.compile(program).session.run(torch.randn(0, 1, 3))[0].shape == (0, 1, 3)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resizing_of_bytes_is_refused(mode: str) -> None:
    """PyTorch resizes them by weights in whole numbers; to the nearest element it only moves them."""
    pixels = torch.randint(0, 256, (1, 3, 5, 6), dtype=torch.uint8)
    dims = (({2: Dim.AUTO, 3: Dim.AUTO},),)
    model = Model(lambda x: functional.interpolate(x, size=(7, 9), mode=mode))
    with pytest.raises(LowerkitError, match=f"resized by upsample_{mode}2d"):
        lowerkit.compile(torch.export.export(model, (pixels,), dynamic_shapes=dims, strict=False))


def test_what_torch_alone_has_is_refused_without_naming_a_bug() -> None:
    dims = (({0: Dim.AUTO, 1: Dim.AUTO},),)
    strided = Model(lambda x: torch.as_strided(x, (2, 3), (3, 1)))
    bytes_of_two = Model(lambda x: x.flatten())
    for program in (
        torch.export.export(strided, (torch.randn(4, 6),), dynamic_shapes=dims, strict=False),
        torch.export.export(bytes_of_two, (torch.zeros(2, 3, dtype=torch.uint16),), strict=False),
    ):
        with pytest.raises(LowerkitError) as caught:
            lowerkit.compile(program)
        assert caught.value.code == "LK4001" and "bug" not in str(caught.value)
