"""Look-ups, scatters, resizing, sorting and scans of the numpy references agree with PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from lowerkit.dialect import (
    CumulativeOp,
    GatherOp,
    ResizeOp,
    RopeOp,
    ScatterOp,
    SortOp,
    TopkOp,
)
from tests.unit.dialect.torch_arrays import EXTREMES, Reference, close, normal, torch_of


def test_gather(reference: Reference, random: np.random.Generator) -> None:
    table, indices = normal(random, 11, 6), random.integers(0, 11, (3, 4))
    close(reference(GatherOp.build, table, indices)[0], functional.embedding(torch_of(indices), torch_of(table)))
    columns = np.array([-1, 2, -6])
    close(
        reference(lambda d, i: GatherOp.build(d, i, axis=1), table, columns)[0],
        torch_of(table)[:, torch_of(columns)],
    )


@pytest.mark.parametrize(("kind", "reduce"), [("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")])
def test_scatter(kind: str, reduce: str, reference: Reference, random: np.random.Generator) -> None:
    table, indices, updates = normal(random, 6, 5), random.integers(0, 5, 9), normal(random, 6, 9)
    (found,) = reference(lambda d, i, u: ScatterOp.build(d, i, u, axis=1, kind=kind), table, indices, updates)
    places = torch_of(indices).expand(6, 9)
    close(found, torch_of(table).scatter_reduce(1, places, torch_of(updates), reduce))


def test_the_last_of_equal_indices_stands(reference: Reference, random: np.random.Generator) -> None:
    table, rows = normal(random, 4, 5), normal(random, 3, 5)
    (written,) = reference(ScatterOp.build, table, np.array([1, 3, -3]), rows)
    assert np.array_equal(written, np.stack([table[0], rows[2], table[2], rows[1]]))


@pytest.mark.parametrize("size", [(7, 9), (3, 4), (12, 5), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_resize(size: Any, dtype: Any, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 2, 3, 6, 5, dtype=dtype)
    budget = 2e-6 if dtype == np.float32 else 1e-12

    def run(mode: str, coordinates: str, rounding: str = "floor") -> Any:
        return reference(
            lambda a: ResizeOp.build(a, mode=mode, coordinates=coordinates, nearest_rounding=rounding, size=size), x
        )[0]

    tensor = torch_of(x)
    close(run("nearest", "asymmetric"), functional.interpolate(tensor, size, mode="nearest"))
    close(run("nearest", "half_pixel", "round_prefer_ceil"), functional.interpolate(tensor, size, mode="nearest-exact"))
    for mode, name in (("linear", "bilinear"), ("cubic", "bicubic")):
        close(run(mode, "half_pixel"), functional.interpolate(tensor, size, mode=name), 4 * budget)
        aligned = functional.interpolate(tensor, size, mode=name, align_corners=True)
        close(run(mode, "align_corners"), aligned, 4 * budget)


@pytest.mark.parametrize("scale", [1.5, 2.0, 0.7])
def test_resize_by_scale(scale: float, reference: Reference, random: np.random.Generator) -> None:
    """PyTorch keeps a scale that was given, even where the sizes would give another one."""
    x = normal(random, 1, 2, 7, dtype=np.float32)
    wanted = functional.interpolate(torch_of(x), scale_factor=scale, mode="linear", recompute_scale_factor=False)
    (found,) = reference(lambda a: ResizeOp.build(a, mode="linear", size=[math.floor(7 * scale)], scales=[scale]), x)
    close(found, wanted, 1e-5)


def test_resize_in_one_and_three_dimensions(reference: Reference, random: np.random.Generator) -> None:
    line, volume = normal(random, 2, 3, 9), normal(random, 1, 2, 4, 5, 6)
    close(
        reference(lambda a: ResizeOp.build(a, mode="linear", size=[5]), line)[0],
        functional.interpolate(torch_of(line), 5, mode="linear"),
    )
    close(
        reference(lambda a: ResizeOp.build(a, mode="linear", size=[7, 3, 8]), volume)[0],
        functional.interpolate(torch_of(volume), (7, 3, 8), mode="trilinear"),
    )


@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending: bool, reference: Reference, random: np.random.Generator) -> None:
    for array in (
        random.integers(-3, 3, (4, 17)),
        normal(random, 3, 8),
        EXTREMES,
        np.array([np.nan, 1, np.nan, -np.inf, 1, np.inf]),
        random.random((2, 9)) < 0.5,
    ):
        wanted = torch.sort(torch_of(array), dim=-1, descending=descending, stable=True)
        values, indices = reference(lambda a: SortOp.build(a, descending=descending), array)
        close(values, wanted.values)
        close(indices, wanted.indices)


@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest: bool, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 5, 11, 3)
    for axis, k in ((1, 4), (0, 5), (2, 1)):
        wanted = torch.topk(torch_of(x), k, axis, largest)
        values, indices = reference(lambda a, axis=axis, k=k: TopkOp.build(a, k=k, axis=axis, largest=largest), x)
        close(values, wanted.values)
        close(indices, wanted.indices)


def test_topk_takes_the_first_of_equals(reference: Reference) -> None:
    values, indices = reference(lambda a: TopkOp.build(a, k=3), np.array([1.0, 7.0, 7.0, 7.0, 2.0]))
    np.testing.assert_array_equal(values, [7.0, 7.0, 7.0])
    np.testing.assert_array_equal(indices, [1, 2, 3])


@pytest.mark.parametrize("half_table", [False, True])
def test_rope(half_table: bool, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 2, 3, 5, 8)
    angles = normal(random, 5, 4)
    tables = angles if half_table else np.concatenate([angles, angles], -1)
    # as transformers writes it for Llama
    tensor = torch_of(x)
    rotated = torch.cat((-tensor[..., 4:], tensor[..., :4]), -1)
    full = torch_of(np.concatenate([angles, angles], -1))
    close(
        reference(RopeOp.build, x, np.cos(tables), np.sin(tables))[0], tensor * full.cos() + rotated * full.sin(), 1e-12
    )
    # neighbours as pairs: multiplication of complex numbers
    pairs = torch.view_as_complex(tensor.reshape(2, 3, 5, 4, 2).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones(5, 4, dtype=torch.float64), torch_of(angles)))
    tables = angles if half_table else np.repeat(angles, 2, -1)
    (found,) = reference(lambda a, c, s: RopeOp.build(a, c, s, interleaved=True), x, np.cos(tables), np.sin(tables))
    close(found, turned.reshape(2, 3, 5, 8), 1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative(axis: int, reference: Reference, random: np.random.Generator) -> None:
    x = normal(random, 4, 7)
    tensor = torch_of(x)
    wanted = {
        "sum": tensor.cumsum(axis),
        "prod": tensor.cumprod(axis),
        "max": tensor.cummax(axis).values,
        "min": tensor.cummin(axis).values,
    }
    for kind, expected in wanted.items():
        close(reference(lambda a, kind=kind: CumulativeOp.build(a, kind=kind, axis=axis), x)[0], expected)
    reverse = torch.flip(torch.flip(tensor, [axis]).cumsum(axis), [axis])
    close(reference(lambda a: CumulativeOp.build(a, axis=axis, reverse=True), x)[0], reverse)
    exclusive = tensor.cumsum(axis) - tensor
    close(reference(lambda a: CumulativeOp.build(a, axis=axis, exclusive=True), x)[0], exclusive)


def test_cumulative_of_nan(reference: Reference) -> None:
    for kind, function in (("max", torch.cummax), ("min", torch.cummin)):
        (found,) = reference(lambda a, kind=kind: CumulativeOp.build(a, kind=kind), EXTREMES)
        close(found, function(torch_of(EXTREMES), -1).values)
