"""NaN and infinities in operands of layers: they show in the elements that eager computes from them, in no others."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import lowerkit

NAN, INFINITY = float("nan"), float("inf")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


class TransposedConvolutions(torch.nn.Module):
    """Strides, padding, dilation, groups and ranks; eager scatters, so no weight meets a zero that was inserted."""

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [
            functional.conv_transpose2d(x, w),
            functional.conv_transpose2d(x, w, stride=2),
            functional.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, dilation=2),
            functional.conv_transpose2d(x, w, stride=(1, 3), padding=(0, 1), groups=2),
            functional.conv_transpose1d(x[:, :, 0], w[:, :, 0], stride=2),
        ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transposed_convolutions(dtype: torch.dtype) -> None:
    x, w = torch.ones(1, 4, 3, 3, dtype=dtype), torch.ones(4, 2, 2, 2, dtype=dtype)
    x[0, 2, 1, 1] = -INFINITY
    w[0, 0, 0, 0], w[1, 1, 1, 0], w[3, 0, 1, 1] = INFINITY, NAN, -INFINITY
    hold(TransposedConvolutions(), (x, w))


class Sums(torch.nn.Module):
    """Long ones along either kind of axis, whose rounding errors are carried along."""

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [
            result
            for x in inputs
            for result in (x.sum(-2), x.sum(-1), x.mean((0, 1)), x.sum(), torch.nn.functional.normalize(x, dim=-2))
        ]


def test_sums_of_infinities() -> None:
    inputs: list[torch.Tensor] = []
    for shape in [(2, 16, 3), (2, 17, 3), (2, 130, 70), (2, 3, 4000)]:
        x = torch.ones(shape)
        x[0, shape[1] // 2, 0] = INFINITY
        x[1, 0, 0], x[1, -1, 2] = INFINITY, -INFINITY
        x[0, 1, 2] = NAN
        inputs.append(x)
    hold(Sums(), tuple(inputs))


class Resizing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            functional.interpolate(x, size=(7, 16), mode="bilinear", align_corners=corners) for corners in (False, True)
        ] + [functional.interpolate(x[:, :, 0], size=size, mode="linear") for size in (3, 8, 21)]


class ResizingOneDim(torch.nn.Module):
    """A dim whose size stays has no neighbours, by whatever factor it is resized."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        factors: list[dict[str, Any]] = [
            {"size": (4, 11)},
            {"size": (7, 8)},
            {"size": (4, 8)},
            {"scale_factor": (1.2, 2.0)},
        ]
        corners: list[dict[str, Any]] = [*factors[:3], {"scale_factor": (2.0, 1.1)}]
        return [functional.interpolate(x, mode="bilinear", **each) for each in factors] + [
            functional.interpolate(x, mode="bilinear", align_corners=True, **each) for each in corners
        ]


def test_resizing() -> None:
    """Beyond the last element both neighbours are that one, neither of weight 0."""
    calls: list[tuple[torch.Tensor, ...]] = []
    for place in (0, 1, -2, -1):
        x = torch.ones(1, 2, 4, 8)
        x[0, 0, 0, place], x[0, 1, place, 0] = INFINITY, -INFINITY
        calls.append((x,))
    hold(Resizing(), *calls)
    hold(ResizingOneDim(), *calls)


class Places(torch.nn.Module):
    """A NaN has a place, also beside others and beside padding; so has the first of windows of -infinity."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            result
            for ceil_mode in (False, True)
            for pool, data in ((functional.max_pool1d, x[:, :, 1]), (functional.max_pool2d, x))
            for result in (
                *pool(data, 3, 1, return_indices=True, ceil_mode=ceil_mode),
                *pool(data, 3, 2, 1, return_indices=True, ceil_mode=ceil_mode),
                *pool(data, 2, 3, 1, 2, return_indices=True, ceil_mode=ceil_mode),
            )
        ]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        pytest.param(torch.float64, marks=pytest.mark.exhaustive),
        pytest.param(torch.float16, marks=pytest.mark.exhaustive),
        torch.bfloat16,
    ],
    ids=str,
)
def test_places_of_maxima(dtype: torch.dtype) -> None:
    x = torch.randint(0, 5, (2, 2, 6, 9)).to(dtype)
    x[0, 0, 0, 0], x[0, 1, 1, 4:6], x[0, 1, 3, 2], x[0, 0, -1, -1] = NAN, NAN, NAN, NAN
    x[1, 0], x[1, 1, 2, 3] = -INFINITY, INFINITY
    hold(Places(), (x,))


class Distances(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [functional.pdist(x, order) for order in (0, 1, 2, 3, INFINITY)]


def test_distances_of_nan() -> None:
    x = torch.randn(5, 3)
    x[1, 2], x[3, 0] = NAN, INFINITY
    hold(Distances(), (x,))


class Padded(torch.nn.Module):
    """Convolutions that pad, with constant filters: dense, grouped and depthwise; a batch norm of infinite scale."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Conv2d(4, 4, (5, 1), padding=2, groups=groups, dtype=dtype) for groups in (1, 2, 4)
        )
        self.norm = torch.nn.BatchNorm2d(4, dtype=dtype)
        for layer in self.layers:
            torch.nn.init.ones_(layer.get_parameter("weight"))
            layer.get_parameter("weight").data[1, 0, 4, 0] = INFINITY
        self.norm.weight.data[2] = -INFINITY

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results = [layer(x) for layer in self.layers]
        return [*results, self.norm(self.layers[2](x.abs()))]


def test_padding_meets_infinite_filters() -> None:
    """Eager multiplies zeros with them, in f64 on every machine; in f32 oneDNN may leave them out."""
    with torch.no_grad():
        hold(Padded(torch.float64).eval(), (torch.randn(1, 4, 8, 3, dtype=torch.float64),))


class Bilinear(torch.nn.Module):
    """The first operand and the weight are summed before the second is multiplied."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [functional.bilinear(x, y, w), functional.bilinear(x.flip(0), y[:, :3], w[:, :, :3], w[:, 0, 0])]


def test_bilinear() -> None:
    calls: list[tuple[torch.Tensor, ...]] = []
    for operand in range(3):
        arguments = torch.randn(3, 4), torch.randn(3, 5), torch.randn(2, 4, 5)
        arguments[operand][..., 1, 1] = INFINITY
        calls.append(arguments)
    hold(Bilinear(), *calls)


class ZerosBelow(torch.nn.Module):
    """Where eager keeps the sign of a zero, in every element and for each of these types."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        kept = [torch.relu(x), functional.relu6(x), x.clamp_min(0.0), x.clamp(0.0, 1.0), functional.hardtanh(x, 0.0)]
        return [1 / result for result in kept]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_signs_of_zeros(dtype: torch.dtype) -> None:
    hold(ZerosBelow(), (torch.tensor([-0.0, 0.0, -1.0, 2.0, NAN, INFINITY, -INFINITY] * 7, dtype=dtype),))


def hold(module: torch.nn.Module, *calls: tuple[torch.Tensor, ...]) -> None:
    """Compares with eager in float64, which oneDNN does not compute; NaN and infinities stand in the same places."""
    compiled: Any = lowerkit.compile(module.eval(), calls[0])
    wide: Any = copy.deepcopy(module).double()
    for call, arguments in enumerate(calls):
        expected = wide(*(argument.double() for argument in arguments))
        for place, (have, want) in enumerate(zip(compiled(*arguments), expected, strict=True)):
            message = f"result {place} of call {call}"
            np.testing.assert_allclose(have.astype(np.float64), want.double().numpy(), rtol=1e-2, err_msg=message)
