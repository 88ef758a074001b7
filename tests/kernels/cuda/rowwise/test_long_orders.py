"""Sorting rows that one block does not sort, and keys of 64 bits, against the op's reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import SortOp, TopkOp
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import region
from tests.support.region_kernels import DTYPES
from tests.support.targets.cuda_rows import hold, spills

Array = np.ndarray[Any, Any]
Shape = Sequence[int | None]


def sort(shape: Shape, element: str, **options: Any) -> RegionView:
    return region([(shape, element)], lambda x: list(SortOp.build(x, **options)))


def topk(shape: Shape, element: str, **options: Any) -> RegionView:
    return region([(shape, element)], lambda x: list(TopkOp.build(x, **options)))


def numbers(size: Sequence[int], element: str, seed: int = 0) -> Array:
    """Many equal numbers; of floats also what is special, of wide integers some that differ in one half alone."""
    draw = np.random.default_rng(seed)
    if element == "i64":
        high, low = draw.integers(-3, 3, size), draw.integers(0, 2**32, size) & 0xC0000001
        return (high.astype(np.int64) << 32) | low
    if element[0] == "i":
        return draw.integers(-100, 100, size).astype(DTYPES[element])
    x = draw.standard_normal(size).round(2)
    special = (np.nan, -0.0, 0.0, np.inf, -np.inf, -np.nan, 5e-324, -5e-324)
    flat = x.reshape(-1)
    for number in special:
        flat[draw.integers(0, flat.size, 3)] = number
    with np.errstate(over="ignore", under="ignore"):
        return x.astype(DTYPES[element])


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize(
    ("size", "element", "axis", "launches"),
    [
        ((2, 2300), "f32", 1, 3),
        ((2500, 2), "bf16", 0, 3),
        ((1, 4097), "i32", 1, 4),
    ],
    ids=str,
)
def test_a_long_row_is_sorted_in_runs(
    size: Sequence[int], element: str, axis: int, launches: int, descending: bool
) -> None:
    view = sort(size, element, axis=axis, descending=descending)
    assert len(select_kernels(view, "sm_90")[0].function.launches) == launches
    hold(view, "ordering", [numbers(size, element)])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("size", "element", "axis"),
    [((3, 64), "i64", 1), ((70, 3), "f64", 0), ((1, 1000), "f64", 1), ((2, 1200), "i64", 1), ((5, 1), "i64", 1)],
    ids=str,
)
def test_keys_of_64_bits(size: Sequence[int], element: str, axis: int, descending: bool) -> None:
    hold(sort(size, element, axis=axis, descending=descending), "ordering", [numbers(size, element)], "sm_80")


def test_many_runs_are_merged() -> None:
    """Four merges, the last of fewer runs than the others; open rows."""
    view = sort((None, 17500), "i64", axis=1)
    assert len(select_kernels(view, "sm_90")[0].function.launches) == 5
    hold(view, "ordering", [numbers((1, 17500), "i64")])


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(
    ("shape", "size", "element", "axis", "k"),
    [
        ((2, None), (2, 2300), "f32", 1, 6),
        ((2, None), (2, 40), "i8", 1, 1),
        ((4200, 2), (4200, 2), "bf16", 0, 200),  # what the parts gave is joined in two steps
        ((1, 10300), (1, 10300), "f16", 1, 3),
        ((None, 3000), (2, 3000), "i64", 1, 40),
        ((1, 2300), (1, 2300), "f32", 1, 300),
    ],
    ids=str,
)
def test_the_first_elements(shape: Shape, size: Sequence[int], element: str, axis: int, k: int, largest: bool) -> None:
    hold(topk(shape, element, axis=axis, k=k, largest=largest), "ordering", [numbers(size, element)])


def test_a_row_of_equal_numbers_keeps_its_order() -> None:
    """By kernels that the tests above have compiled."""
    for view, x, level in (
        (sort((1, 4097), "i32", axis=1, descending=True), np.zeros((1, 4097), np.int32), "sm_90"),
        (sort((2, 1200), "i64", axis=1, descending=True), np.full((2, 1200), 7), "sm_80"),
        (topk((2, None), "f32", axis=1, k=6, largest=False), np.full((2, 2300), np.nan, np.float32), "sm_90"),
    ):
        hold(view, "ordering", [x], level)


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (sort((4, None), "f32", axis=1), "rows of n0: how often runs are merged"),
        (topk((4, None), "f32", axis=1, k=300), "the first 300, more than 256 of rows of n0"),
        (topk((4, None), "i64", axis=1, k=3), "keys of 64 bits of rows of n0"),
    ],
)
def test_refusals(view: RegionView, reason: str) -> None:
    assert reason in dict(select_kernels(view, "sm_90")[1])["ordering"]


FULL = {
    "sort": sort((4, 128256), "f32", axis=1),
    "sort of 64 bits": sort((1, 65536), "i64", axis=1),
    "first": topk((4, 128256), "bf16", axis=1, k=50),
}


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", FULL)
def test_nothing_is_spilled_at_full_size(name: str, level: str) -> None:
    if ptxas.find_ptxas() is None:
        pytest.skip("there is no ptxas")
    found = spills(FULL[name], level)
    assert found and not any(found.values()), found
