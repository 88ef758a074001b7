"""grid_sample of images and volumes in all its modes, of one row or column included, against eager."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.nn import functional

import lowerkit

Shape = tuple[int, ...]

SHAPES: dict[int, Sequence[Shape]] = {
    2: ((2, 1, 3, 4), (1, 2, 5, 1)),
    3: ((2, 1, 3, 4, 5), (1, 2, 1, 4, 1)),
}
MODES = [("nearest", 2), ("bilinear", 2), ("bicubic", 2), ("nearest", 3), ("bilinear", 3)]
# Those far away are exact in all that is computed of them.
SPECIAL = (math.nan, math.inf, -math.inf, 300.25, -1234.5, 1.0, -1.0)
SOME = (("zeros", False), ("border", True), ("reflection", False))
OTHERS = (("zeros", True), ("border", False), ("reflection", True))


class _Samples(torch.nn.Module):
    """Every image in the paddings given for it, with corners aligned or not."""

    def __init__(self, mode: str, *options: Sequence[tuple[str, bool]]) -> None:
        super().__init__()
        self.mode, self.options = mode, options

    def forward(self, grid: Tensor, *images: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            functional.grid_sample(x, grid[: x.shape[0]], self.mode, padding, align_corners)
            for x, options in zip(images, self.options, strict=True)
            for padding, align_corners in options
        )


def _grid(*shape: int) -> Tensor:
    """Coordinates of which every third is a quarter, so that some places are halfway, and a few are special."""
    grid = torch.rand(*shape, generator=torch.Generator().manual_seed(3)) * 5 - 2.5
    points = grid.view(-1, shape[-1])
    points[::3] = torch.round(points[::3] * 4) / 4
    for place, coordinate in enumerate(SPECIAL):
        points[2 * place, place % shape[-1]] = coordinate
    return grid


def _image(shape: Shape) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4))


def _same(found: Sequence[object], wanted: Sequence[Tensor], mode: str) -> None:
    tolerance = 0.0 if mode == "nearest" else 1e-5
    for ours, eager in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(ours), eager.numpy(), rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [(SOME, OTHERS), pytest.param((OTHERS, SOME), marks=pytest.mark.exhaustive)],
    ids=["some-others", "others-some"],
)
@pytest.mark.parametrize(("mode", "dims"), MODES)
def test_samples_as_eager_does(mode: str, dims: int, options: Sequence[Sequence[tuple[str, bool]]]) -> None:
    grid, images = _grid(2, *(4, 5, 3)[:dims], dims), [_image(shape) for shape in SHAPES[dims]]
    module = _Samples(mode, *options)
    _same(lowerkit.compile(module, (grid, *images)).session.run(grid, *images), module(grid, *images), mode)


@pytest.mark.parametrize(
    ("mode", "dims"),
    [
        pytest.param("nearest", 2, marks=pytest.mark.exhaustive),
        ("bilinear", 2),
        ("bicubic", 2),
        ("nearest", 3),
        pytest.param("bilinear", 3, marks=pytest.mark.exhaustive),
    ],
)
def test_open_extents(mode: str, dims: int) -> None:
    """Also what is not finite at the ends of an image, of which samples outside hold nothing."""
    module = _Samples(mode, SOME)
    example = (_grid(3, *(4, 5, 6)[:dims], dims), _image((3, 4, *(5, 6, 7)[:dims])))
    opened = (dict.fromkeys(range(dims + 1), Dim.AUTO), (dict.fromkeys(range(dims + 2), Dim.AUTO),))
    program = torch.export.export(module, example, dynamic_shapes=opened, strict=False)
    model = lowerkit.compile(program)
    for batch, channels, extents in ((3, 4, (5, 6, 7)), (2, 5, (2, 3, 4)), (4, 3, (8, 2, 3))):
        grid, image = _grid(batch, *(7, 4, 2)[:dims], dims), _image((batch, channels, *extents[:dims]))
        for first, last in ((0.0, 0.0), (math.nan, 1.0), (1.0, math.inf)):
            flat = image.view(batch, channels, -1)
            flat[..., 0], flat[..., -1] = first, last
            _same(model.session.run(grid, image), module(grid, image), mode)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_other_floats(dtype: torch.dtype) -> None:
    """Half types are computed in f32 and rounded once."""
    module = _Samples("bilinear", SOME)
    grid, image = _grid(2, 4, 5, 2).to(dtype), _image((2, 3, 4, 5)).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    found = lowerkit.compile(module, (grid, image)).session.run(grid, image)
    for ours, wanted in zip(found, module(grid.to(wide), image.to(wide)), strict=True):
        torch.testing.assert_close(torch.as_tensor(ours), wanted.to(dtype), equal_nan=True)


def test_a_sample_is_contiguous() -> None:
    """What follows was captured beside eager's result, and may view it."""

    class Model(torch.nn.Module):
        def forward(self, x: Tensor, grid: Tensor) -> Tensor:
            return functional.grid_sample(x, grid, align_corners=False).view(x.shape[0], -1)

    x, grid = _image((2, 3, 4, 5)), torch.rand(2, 4, 5, 2)
    _same(lowerkit.compile(Model(), (x, grid)).session.run(x, grid), [Model()(x, grid)], "bilinear")
