"""Norms of rows and groups on the simulated device, against the op's reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import GroupNormOp, LayerNormOp, RmsNormOp
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import region
from tests.support.region_kernels import random, tensor
from tests.support.targets.cuda_rows import hold, spills, with_epilogue

Array = np.ndarray[Any, Any]
Shape = Sequence[int | None]


def norm(build: Callable[..., Any], shapes: Sequence[Shape], element: str, affine: str = "") -> RegionView:
    """A norm of its operands; those behind the first are of ``affine``."""
    types = [element] + [affine or element] * (len(shapes) - 1)
    return region(list(zip(shapes, types, strict=True)), build)


def arrays(shapes: Sequence[Sequence[int]], element: str, affine: str = "") -> list[Array]:
    """An input far from zero, and a scale and a bias."""
    types = [element] + [affine or element] * (len(shapes) - 1)
    made = [random(shape, type_, seed=number) for number, (shape, type_) in enumerate(zip(shapes, types, strict=True))]
    return [(made[0].astype(np.float64) + 3).astype(made[0].dtype), *made[1:]]


LAYER: dict[str, tuple[Sequence[Shape], Sequence[Sequence[int]], str, str, dict[str, Any]]] = {
    "whole vectors": (((6, 64), (64,), (64,)), ((6, 64), (64,), (64,)), "bf16", "", {}),
    "tails": (((5, 33), (33,), (33,)), ((5, 33), (33,), (33,)), "f32", "", {}),
    "many short rows": (((700, 9), (9,)), ((700, 9), (9,)), "f16", "f32", {}),
    "two dims": (((3, 4, 5), (4, 5), (4, 5)), ((3, 4, 5), (4, 5), (4, 5)), "f64", "", {"normalized_rank": 2}),
    "rows of one": (((4, 1), (1,)), ((4, 1), (1,)), "f32", "", {}),
    "open rows": (((None, 24), (24,)), ((7, 24), (24,)), "bf16", "", {}),
    "no rows": (((None, 24), (24,)), ((0, 24), (24,)), "f32", "", {}),
    "open length": (((3, None), (None,)), ((3, 1030), (1030,)), "f32", "", {}),
}


@pytest.mark.variants("level")
@pytest.mark.parametrize(("name", "level"), [*((name, "sm_90") for name in LAYER), ("tails", "sm_80")])
def test_layer_norm(name: str, level: str) -> None:
    shapes, sizes, element, affine, options = LAYER[name]
    view = norm(lambda *x: LayerNormOp.build(*x, **options), shapes, element, affine)
    hold(view, "row_norm", arrays(sizes, element, affine), level, scale=4)


@pytest.mark.parametrize(("element", "length"), [("f32", 65), ("bf16", 64), ("f16", 1), ("f64", 20), ("bf16", 17000)])
def test_rms_norm(element: str, length: int) -> None:
    """The last one does not fit into registers."""
    shapes = ((3, length), (length,))
    plan = hold(norm(RmsNormOp.build, shapes, element), "row_norm", arrays(shapes, element))
    assert ("in pieces" in plan.note) == (length > 16384)


GROUPS: dict[str, tuple[Shape, Sequence[int], str, bool]] = {
    "channels second": ((2, 6, 5, 7), (2, 6, 5, 7), "f32", False),
    "channels last": ((2, 5, 7, 6), (2, 5, 7, 6), "bf16", True),
    "rows alone": ((4, 6), (4, 6), "f16", False),
    "open": ((None, 6, None), (2, 6, 700), "f32", False),
    "open and last": ((None, None, 6), (2, 400, 6), "f64", True),
}


@pytest.mark.parametrize("name", GROUPS)
def test_group_norm(name: str) -> None:
    shape, size, element, last = GROUPS[name]
    view = norm(lambda x, s, b: GroupNormOp.build(x, s, b, groups=3, channels_last=last), (shape, (6,), (6,)), element)
    hold(view, "row_norm", arrays((size, (6,), (6,)), element), scale=4)


def test_instance_norm_without_scale() -> None:
    view = norm(lambda x: GroupNormOp.build(x, groups=4), ((2, 4, 9),), "f32")
    hold(view, "row_norm", arrays(((2, 4, 9),), "f32"), scale=4)


@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(5, 40), ("?", "?")], ids=str)
def test_an_epilogue_and_two_results(shape: tuple[int | str, ...], element: str) -> None:
    operand = tensor(shape, element)
    view = with_epilogue("rms_norm", [operand], shape, element, "normalized_rank = 1 : i64, epsilon = 1.0e-6 : f64")
    hold(view, "row_norm", [random((5, 40), element), random((40,), element, 1), random((5, 40), element, 2)], scale=4)


def test_the_variance_is_that_of_differences() -> None:
    """Squares of numbers near 1000 would leave nothing of a variance of 1e-4; a rounding of the mean is lost."""
    x = (1000 + 0.01 * np.random.default_rng(0).standard_normal((3, 200))).astype(np.float32)
    hold(norm(LayerNormOp.build, ((3, 200),), "f32"), "row_norm", [x], scale=2.0**-24 * 1000 / 0.01 * 4e6)


def test_a_nan_stays_in_its_row() -> None:
    x = random((4, 33), "f32")
    x[1, 5], x[2, 7] = np.nan, np.inf
    hold(norm(LayerNormOp.build, ((4, 33),), "f32"), "row_norm", [x])


def test_a_double_scale_of_single_rows_is_refused() -> None:
    view = norm(RmsNormOp.build, ((4, 8), (8,)), "f32", "f64")
    assert dict(select_kernels(view, "sm_90")[1])["row_norm"] == "the scale is f64, the rows are not"


FULL: dict[str, RegionView] = {
    "4096": norm(LayerNormOp.build, ((4096, 4096), (4096,), (4096,)), "bf16"),
    "16384": norm(RmsNormOp.build, ((512, 16384), (16384,)), "f32"),
    "f64": norm(LayerNormOp.build, ((512, 8192),), "f64"),
    "long": norm(RmsNormOp.build, ((64, 40000), (40000,)), "bf16"),
    "groups": norm(lambda x, s, b: GroupNormOp.build(x, s, b, groups=32), ((2, 320, 4096), (320,), (320,)), "bf16"),
}


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", FULL)
def test_nothing_is_spilled_at_full_size(name: str, level: str) -> None:
    assembler = ptxas.find_ptxas()
    if assembler is None or not ptxas.knows(assembler, level):
        pytest.skip(f"there is no ptxas that knows {level}")
    assert set(spills(FULL[name], level).values()) == {0}
