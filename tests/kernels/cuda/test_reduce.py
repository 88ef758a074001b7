"""Reductions on the simulated device, against the op's reference in float64 and int64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import ReduceOp
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import region
from tests.support.region_kernels import random, tensor
from tests.support.targets.cuda_kernels import compile_cuda, run_cuda
from tests.support.targets.cuda_rows import hold, spills, with_epilogue

Array = np.ndarray[Any, Any]
Shape = Sequence[int | None]
KINDS = ("sum", "prod", "mean", "max", "min", "any", "all", "argmax", "argmin")


def reduction(shape: Shape, element: str, kind: str, axes: Sequence[int], keep_dims: bool = False) -> RegionView:
    return region([(shape, element)], lambda x: ReduceOp.build(x, kind=kind, axes=axes, keep_dims=keep_dims))


def values(shape: Sequence[int], element: str, kind: str) -> Array:
    """Values of which products neither vanish nor explode, and bits of which some rows are alike."""
    x = random(shape, element, scale=0.3)
    if kind == "prod":
        return (1 + x.astype(np.float64)).astype(x.dtype) if element[0] in "fb" else x
    if kind in ("any", "all"):
        x[0], x[-1] = 0, 1
    return x


def fits(kind: str, element: str) -> bool:
    """Whether there is such a reduction."""
    return element != "i1" if kind not in ("any", "all", "mean") else kind != "mean" or element[0] in "fb"


@pytest.mark.parametrize("element", ["f32", "bf16", "f64", "i8", "i64", "i1"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_rows(kind: str, element: str) -> None:
    if fits(kind, element):
        hold(reduction((5, 37), element, kind, [1]), "reduce", [values((5, 37), element, kind)], scale=8)


AXES: dict[str, tuple[Shape, Sequence[int], Sequence[int], bool]] = {
    "columns": ((33, 20), (33, 20), [0], False),
    "the middle": ((3, 33, 20), (3, 33, 20), [1], True),
    "both ends": ((5, 7, 6), (5, 7, 6), [0, 2], False),
    "all": ((5, 7, 6), (5, 7, 6), [0, 1, 2], True),
    "none": ((5, 7), (5, 7), [], False),
    "of one": ((5, 1, 7), (5, 1, 7), [1], False),
    "a scalar": ((7,), (7,), [0], False),
    "open rows": ((None, 70), (9, 70), [1], False),
    "no rows": ((None, 70), (0, 70), [1], False),
    "open columns": ((None, 20), (150, 20), [0], True),
    "all open": ((None, None, None), (3, 40, 9), [0, 2], False),
}


@pytest.mark.parametrize("kind", ["mean", "max"])
@pytest.mark.parametrize("name", AXES)
def test_axes(name: str, kind: str) -> None:
    shape, size, axes, keep = AXES[name]
    hold(reduction(shape, "f32", kind, axes, keep), "reduce", [random(size, "f32")], scale=4)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize(("shape", "axis"), [((4, 33), 1), ((150, 5), 0), ((2, None, 3), 1)], ids=str)
def test_positions(shape: Shape, axis: int, kind: str) -> None:
    """The first of equals; a NaN is the extreme, wherever it stands."""
    size = [9 if each is None else each for each in shape]
    x = random(size, "f32").round(1)
    x.reshape(-1)[[3, 7, 11]] = np.nan
    hold(reduction(shape, "f32", kind, [axis]), "reduce", [x])
    hold(
        reduction(shape, "f32", kind, [axis]), "reduce", [np.full(size, -np.inf if kind == "argmax" else np.inf, "f4")]
    )
    hold(reduction(shape, "i8", kind, [axis]), "reduce", [np.full(size, -128 if kind == "argmax" else 127, np.int8)])


def test_a_nan_is_the_extreme_of_its_row_alone() -> None:
    x = random((3, 40), "bf16")
    x[1, 39], x[2, 0] = np.nan, np.inf
    for kind in ("max", "min", "sum"):
        hold(reduction((3, 40), "bf16", kind, [1]), "reduce", [x], scale=8)


PARTS: dict[str, tuple[Shape, Sequence[int], Sequence[int]]] = {
    "a long row": ((20000,), (20000,), [0]),
    "few long rows": ((3, 9000), (3, 9000), [1]),
    "long columns": ((700, 24), (700, 24), [0]),
    "an open row": ((None,), (3000,), [0]),
    "an empty row": ((None,), (0,), [0]),
}


@pytest.mark.parametrize("kind", ["sum", "mean", "all", "argmax"])
@pytest.mark.parametrize("name", PARTS)
def test_long_rows_are_cut_into_parts(name: str, kind: str) -> None:
    shape, size, axes = PARTS[name]
    if size == (0,) and kind in ("argmax", "mean"):
        return  # the one has no value, and numpy warns about the other
    element = "i32" if kind == "all" else "f32"
    x = np.ones(size, np.int32) if kind == "all" else random(size, "f32")
    plan = hold(reduction(shape, element, kind, axes), "reduce", [x], scale=4 * max(size[0], 9) ** 0.5)
    assert len(plan.function.launches) == 2
    assert "parts" in plan.note


def test_results_are_the_same_every_time() -> None:
    view, x = reduction((30000,), "f32", "sum", [0]), random((30000,), "f32")
    compiled = compile_cuda(view, "sm_80", fast=True)
    assert run_cuda(compiled, [x])[0].tobytes() == run_cuda(compiled, [x])[0].tobytes()


@pytest.mark.parametrize("shape", [(4, 6), ("?", "?")], ids=str)
def test_an_epilogue_and_two_results(shape: tuple[int | str, ...]) -> None:
    operand = tensor(("?" if "?" in shape else 9, *shape), "bf16")
    attributes = 'kind = "mean", axes = array<i64: 0>, keep_dims = false'
    view = with_epilogue("reduce", [operand], shape, "bf16", attributes)
    inputs = [random((9, 4, 6), "bf16"), random((6,), "bf16", 1), random((4, 6), "bf16", 2)]
    hold(view, "reduce", inputs, scale=4)


def test_an_empty_row_is_left_to_plain_loops() -> None:
    plan, refusals = select_kernels(reduction((3, 0), "f32", "sum", [1]), "sm_90")
    assert plan.family == "threads"
    assert dict(refusals)["reduce"] == "nothing to compute"


FULL = {
    "rows": reduction((4096, 4096), "bf16", "sum", [1]),
    "columns": reduction((4096, 4096), "bf16", "sum", [0]),
    "all": reduction((4096, 4096), "f32", "mean", [0, 1]),
    "positions": reduction((16, 128256), "f32", "argmax", [1]),
    "an image": reduction((32, 7, 7, 2048), "bf16", "mean", [1, 2]),
}


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", FULL)
def test_nothing_is_spilled_at_full_size(name: str, level: str) -> None:
    assembler = ptxas.find_ptxas()
    if assembler is None or not ptxas.knows(assembler, level):
        pytest.skip(f"there is no ptxas that knows {level}")
    assert set(spills(FULL[name], level).values()) == {0}
