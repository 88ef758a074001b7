"""Running values, sorting and the first elements on the simulated device, against the op's reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import CumulativeOp, SortOp, TopkOp
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import region
from tests.support.region_kernels import random
from tests.support.targets.cuda_rows import hold, spills

Array = np.ndarray[Any, Any]
Shape = Sequence[int | None]


def cumulative(shape: Shape, element: str, **options: Any) -> RegionView:
    return region([(shape, element)], lambda x: CumulativeOp.build(x, **options))


def sort(shape: Shape, element: str, **options: Any) -> RegionView:
    return region([(shape, element)], lambda x: list(SortOp.build(x, **options)))


def topk(shape: Shape, element: str, **options: Any) -> RegionView:
    return region([(shape, element)], lambda x: list(TopkOp.build(x, **options)))


@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_running_values(kind: str, exclusive: bool, reverse: bool) -> None:
    for number, (element, axis) in enumerate((("f32", 1), ("i8", 0), ("bf16", 1))):
        x = random((5, 37), element, number, 0.5)
        if kind == "prod" and element != "i8":
            x = (1 + 0.1 * x.astype(np.float64)).astype(x.dtype)
        view = cumulative((5, 37), element, kind=kind, axis=axis, exclusive=exclusive, reverse=reverse)
        hold(view, "cumulative", [x], scale=16)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "size", "axis"),
    [((2, None), (2, 2100), 1), ((None, 3), (150, 3), 0), ((None,), (0,), 0), ((1, 5000), (1, 5000), 1)],
    ids=str,
)
def test_a_long_row_carries_its_value(shape: Shape, size: Sequence[int], axis: int, reverse: bool) -> None:
    for kind, element in (("sum", "f64"), ("max", "i32")):
        view = cumulative(shape, element, kind=kind, axis=axis, exclusive=True, reverse=reverse)
        hold(view, "cumulative", [random(size, element)], scale=1e-6)


def test_a_nan_stays_in_a_running_value() -> None:
    x = random((2, 40), "f32")
    x[0, 20] = np.nan
    for kind in ("sum", "max"):
        hold(cumulative((2, 40), "f32", kind=kind, axis=1), "cumulative", [x], scale=32)


def numbers(size: Sequence[int], element: str) -> Array:
    """Values of which many are equal, with all special ones."""
    x = random(size, element)
    if element[0] in "fb":
        x = x.astype(np.float32).round(1).astype(x.dtype)
        x.reshape(-1)[:8] = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf, -0.0, np.nan, 1]).astype(x.dtype)
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("size", "element", "axis"),
    [
        ((3, 17), "f32", 1),
        ((17, 3), "i8", 0),
        ((100,), "bf16", 0),
        ((9, 2), "f16", 1),
        ((2, 1), "i32", 1),
        ((8, 8), "i1", 1),
    ],
    ids=str,
)
def test_sorting_is_stable(size: Sequence[int], element: str, axis: int, descending: bool) -> None:
    x = numbers(size, element) if np.prod(size) >= 8 else random(size, element)
    hold(sort(size, element, axis=axis, descending=descending), "ordering", [x])


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(
    ("shape", "size", "element", "axis", "k"),
    [((3, 17), (3, 17), "f32", 1, 5), ((20, 3), (20, 3), "i32", 0, 20), ((None, 40), (5, 40), "bf16", 1, 1)],
    ids=str,
)
def test_the_first_elements(shape: Shape, size: Sequence[int], element: str, axis: int, k: int, largest: bool) -> None:
    hold(topk(shape, element, axis=axis, k=k, largest=largest), "ordering", [numbers(size, element)])


FULL = {
    "running": cumulative((64, 4096), "f32", kind="sum", axis=1),
    "running columns": cumulative((4096, 4096), "bf16", kind="sum", axis=0),
    "sort": sort((64, 512), "f32", axis=1),
    "first": topk((64, 1000), "bf16", axis=1, k=5),
}


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", FULL)
def test_nothing_is_spilled_at_full_size(name: str, level: str) -> None:
    assembler = ptxas.find_ptxas()
    if assembler is None or not ptxas.knows(assembler, level):
        pytest.skip(f"there is no ptxas that knows {level}")
    assert set(spills(FULL[name], level).values()) == {0}
