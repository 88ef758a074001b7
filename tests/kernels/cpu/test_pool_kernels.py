"""Pooling kernels against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from lowerkit.targets.cpu.reductions.pool import PoolFamily
from tests.support.region_kernels import LEVELS, Array, anchored, largest_error, random, run_region, tensor

FAMILY = PoolFamily()
WINDOWS = [(3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 2), (5, 5, 0, 1), (3, 3, 1, 1)]
SPATIAL = {1: (40,), 2: (13, 17), 3: (5, 9, 7)}


def ints(values: Sequence[int]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>"


def pool_text(
    name: str,
    shapes: tuple[Sequence[int | str], Sequence[int | str]],
    channels_last: bool,
    window: tuple[int, int, int, int],
    element: str = "f32",
    more: str = "",
    high: int | None = None,
) -> str:
    kernel, stride, low, dilation = window
    rank = len(shapes[0]) - 2
    padding = [low, low if high is None else high] * rank
    attributes = (
        f"channels_last = {str(channels_last).lower()}, kernel = {ints([kernel] * rank)}, "
        f"strides = {ints([stride] * rank)}, "
        f"padding = {ints(padding)}, dilation = {ints([dilation] * rank)}{more}"
    )
    return anchored(name, [tensor(shapes[0], element)], tensor(shapes[1], element), attributes)


def average(count_padding: bool, rank: int, divisor: int = 0, extra: int = 0) -> str:
    return (
        f", count_include_pad = {str(count_padding).lower()}, divisor = {divisor} : i64, "
        f"ceil_extra = {ints([extra] * rank)}"
    )


def moved(array: Array, channels_last: bool) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if channels_last else array


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("window", WINDOWS)
def test_max_pool(level: str, channels_last: bool, rank: int, window: tuple[int, int, int, int]) -> None:
    for channels in (3, 70):
        x = random((2, channels, *SPATIAL[rank]), "f32")
        eager: Any = getattr(functional, f"max_pool{rank}d")(torch.from_numpy(x), *window)
        expected = moved(eager.numpy(), channels_last)
        given = moved(x, channels_last)
        text = pool_text("max_pool", (given.shape, expected.shape), channels_last, window)
        (result,) = run_region(FAMILY, text, [given], [expected.shape], level)
        assert (result == expected).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("count_padding", [True, False])
def test_avg_pool(level: str, channels_last: bool, rank: int, count_padding: bool) -> None:
    x = random((2, 21, *SPATIAL[rank]), "f32")
    function: Any = getattr(functional, f"avg_pool{rank}d")
    exact = function(torch.from_numpy(x).double(), 3, 2, 1, count_include_pad=count_padding).numpy()
    given, expected = moved(x, channels_last), moved(exact, channels_last)
    text = pool_text(
        "avg_pool", (given.shape, expected.shape), channels_last, (3, 2, 1, 1), more=average(count_padding, rank)
    )
    (result,) = run_region(FAMILY, text, [given], [expected.shape], level)
    assert largest_error(result, expected) <= 4 * np.abs(x).max() * 2.0**-24


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("count_padding", [True, False])
def test_avg_pool_in_ceil_mode(level: str, channels_last: bool, count_padding: bool) -> None:
    x = random((1, 20, 10, 10), "f32")
    exact = functional.avg_pool2d(
        torch.from_numpy(x).double(), 3, 2, 1, ceil_mode=True, count_include_pad=count_padding
    ).numpy()
    high = (exact.shape[2] - 1) * 2 + 3 - 10 - 1
    given, expected = moved(x, channels_last), moved(exact, channels_last)
    more = average(count_padding, 2, extra=high - 1)
    text = pool_text("avg_pool", (given.shape, expected.shape), channels_last, (3, 2, 1, 1), more=more, high=high)
    (result,) = run_region(FAMILY, text, [given], [expected.shape], level)
    assert largest_error(result, expected) <= 4 * np.abs(x).max() * 2.0**-24


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels_last", [True, False])
def test_divisor(level: str, channels_last: bool) -> None:
    x = random((1, 20, 9, 9), "f32")
    exact = functional.avg_pool2d(torch.from_numpy(x).double(), 3, 2, 1, divisor_override=5).numpy()
    given, expected = moved(x, channels_last), moved(exact, channels_last)
    text = pool_text("avg_pool", (given.shape, expected.shape), channels_last, (3, 2, 1, 1), more=average(True, 2, 5))
    (result,) = run_region(FAMILY, text, [given], [expected.shape], level)
    assert largest_error(result, expected) <= 8 * np.abs(x).max() * 2.0**-24


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("element", ["bf16", "f64", "i8"])
def test_other_elements(level: str, channels_last: bool, element: str) -> None:
    x = random((1, 20, 9, 9), element)
    exact = functional.max_pool2d(torch.from_numpy(x.astype(np.float64)), 3, 2, 1).numpy()
    given, expected = moved(x, channels_last), moved(exact, channels_last)
    text = pool_text("max_pool", (given.shape, expected.shape), channels_last, (3, 2, 1, 1), element)
    (result,) = run_region(FAMILY, text, [given], [expected.shape], level)
    assert (result.astype(np.float64) == expected).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels_last", [True, False])
def test_nan_wins_its_windows(level: str, channels_last: bool) -> None:
    x = random((1, 20, 9, 9), "f32")
    x[0, 3, 4, 4] = np.nan
    x[0, 4] = -np.inf
    eager = functional.max_pool2d(torch.from_numpy(x), 3, 2, 1).numpy()
    given, expected = moved(x, channels_last), moved(eager, channels_last)
    text = pool_text("max_pool", (given.shape, expected.shape), channels_last, (3, 2, 1, 1))
    (result,) = run_region(FAMILY, text, [given], [expected.shape], level)
    assert largest_error(result, expected) == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("size", [(9, 12), (4, 3)])
def test_dynamic_batch_and_image(level: str, channels_last: bool, size: tuple[int, int]) -> None:
    x = random((3, 20, *size), "f32")
    eager = functional.max_pool2d(torch.from_numpy(x), 3, 2, 1).numpy()
    given, expected = moved(x, channels_last), moved(eager, channels_last)
    shape = ("?", "?", "?", 20) if channels_last else ("?", 20, "?", "?")
    text = pool_text("max_pool", (shape, shape), channels_last, (3, 2, 1, 1))
    (result,) = run_region(FAMILY, text, [given], [expected.shape], level)
    assert (result == expected).all()
