"""Softmax on the simulated device, against the op's reference in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, random, tensor
from tests.support.targets.cuda_rows import hold, spills, with_epilogue

Shape = Sequence[int | str]


def attributes(axis: int, log: bool) -> str:
    return f"axis = {axis} : i64, log = {str(log).lower()}"


def softmax(shape: Shape, element: str, axis: int, log: bool = False) -> RegionView:
    type_ = tensor(shape, element)
    return RegionView.from_text(anchored("softmax", [type_], type_, attributes(axis, log)), "softmax")


CASES: dict[str, tuple[Shape, Sequence[int], str, int]] = {
    "whole vectors": ((4, 64), (4, 64), "bf16", 1),
    "tails": ((5, 33), (5, 33), "f32", 1),
    "many short rows": ((600, 5), (600, 5), "f16", 1),
    "doubles": ((3, 40), (3, 40), "f64", 1),
    "an outer axis": ((33, 20), (33, 20), "bf16", 0),
    "an axis between": ((3, 17, 20), (3, 17, 20), "f32", 1),
    "rows of one": ((3, 1), (3, 1), "f32", 1),
    "one element": ((1,), (1,), "f32", 0),
    "open rows": (("?", 12), (9, 12), "f32", 1),
    "no rows": (("?", 12), (0, 12), "f32", 1),
    "open length": ((2, "?"), (2, 2100), "bf16", 1),
    "open outer axis": (("?", 20), (70, 20), "f32", 0),
    "all open": (("?", "?", "?"), (2, 70, 3), "f64", 1),
}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_softmax(name: str, log: bool) -> None:
    shape, size, element, axis = CASES[name]
    hold(softmax(shape, element, axis, log), "softmax", [random(size, element, scale=3.0)], scale=8 if log else 1)


@pytest.mark.parametrize("level", ["sm_80", "sm_100"])
def test_other_levels(level: str) -> None:
    hold(softmax((5, 33), "f32", 1), "softmax", [random((5, 33), "f32")], level)


@pytest.mark.parametrize("shape", [(7, 40), (7, "?")], ids=str)
@pytest.mark.parametrize("log", [False, True])
def test_rows_with_infinities(shape: Shape, log: bool) -> None:
    """A row with +inf or NaN, or of -inf alone, is NaN; -inf among numbers is 0."""
    x = random((7, 40), "f32")
    x[0, 3], x[1, 39], x[3, 5] = np.inf, np.nan, -np.inf
    x[2] = -np.inf
    x[4, :39] = -np.inf
    x[5], x[6, ::2] = 3e38, -3e38
    hold(softmax(shape, "f32", 1, log), "softmax", [x])


@pytest.mark.parametrize("shape", [(3, 2500), (3, "?")], ids=str)
def test_pieces_of_minus_infinity(shape: Shape) -> None:
    """A piece without numbers, before those that have some and behind them."""
    x = np.full((3, 2500), -np.inf, np.float32)
    x[0, 2400:], x[1, :10], x[2, 1200] = 1, 2, 0
    hold(softmax(shape, "f32", 1), "softmax", [x])


@pytest.mark.parametrize(("shape", "axis"), [((5, 40), 1), ((40, 6), 0), (("?", "?"), 1)], ids=str)
@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_an_epilogue_and_two_results(shape: Shape, axis: int, element: str) -> None:
    size = tuple(7 if each == "?" else int(each) for each in shape)
    view = with_epilogue("softmax", [tensor(shape, element)], shape, element, attributes(axis, False))
    hold(view, "softmax", [random(size, element), random(size[-1:], element, 1), random(size, element, 2)], scale=4)


def test_a_row_that_is_no_float_and_nothing_at_all_are_refused() -> None:
    refusals = dict(select_kernels(softmax((0, 4), "f32", 1), "sm_90")[1])
    assert refusals["softmax"] == "nothing to compute"


FULL = {
    "16384": softmax((512, 16384), "f32", 1),
    "1000": softmax((4096, 1000), "bf16", 1),
    "f64": softmax((512, 8192), "f64", 1),
    "a vocabulary": softmax((16, 128256), "f32", 1, log=True),
    "an axis between": softmax((16, 512, 4096), "f16", 1),
}


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", FULL)
def test_nothing_is_spilled_at_full_size(name: str, level: str) -> None:
    assembler = ptxas.find_ptxas()
    if assembler is None or not ptxas.knows(assembler, level):
        pytest.skip(f"there is no ptxas that knows {level}")
    assert set(spills(FULL[name], level).values()) == {0}
