"""Reduction and scan kernels against numpy in f64 and in integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lowerkit.targets.cpu.reductions.cumulative import CumulativeFamily
from lowerkit.targets.cpu.reductions.reduce import ReduceFamily
from lowerkit.targets.plan import Refusal
from tests.support.region_kernels import (
    DTYPES,
    LEVELS,
    Array,
    anchored,
    largest_error,
    plan_region,
    random,
    run_region,
    tensor,
)

SHAPES = [
    ((3, 37), (1,), False),
    ((4, 5, 70), (1,), True),
    ((2, 49, 130), (1,), False),
    ((2, 3, 4, 5, 6), (1, 3), True),
    ((2, 3, 4, 5, 6), (0, 2, 4), False),
    ((7,), (0,), False),
    ((300, 9), (0,), False),
    ((4, 1, 6), (1,), False),
]


def reduce_text(shape: Sequence[int | str], kind: str, axes: Sequence[int], keep: bool, element: str) -> str:
    kept = [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]
    result = {"any": "i1", "all": "i1", "argmax": "i64", "argmin": "i64"}.get(kind, element)
    attributes = f'kind = "{kind}", axes = array<i64: {", ".join(map(str, axes))}>, keep_dims = {str(keep).lower()}'
    return anchored("reduce", [tensor(shape, element)], tensor(kept, result), attributes)


def exact_reduction(a: Array, kind: str, axes: tuple[int, ...], keep: bool) -> Array:
    if kind in ("any", "all"):
        return np.asarray(getattr(np, kind)(a != 0, axis=axes, keepdims=keep))
    if kind in ("argmax", "argmin"):
        wide = a.astype(np.float64) if a.dtype.kind not in "iu" else a
        return np.asarray(getattr(np, kind)(wide, axis=axes[0], keepdims=keep))
    if a.dtype.kind in "iu":
        return np.asarray(getattr(np, kind)(a, axis=axes, keepdims=keep)).astype(a.dtype)
    return np.asarray(getattr(np, kind)(a.astype(np.float64), axis=axes, keepdims=keep))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("shape", "axes", "keep"), SHAPES)
@pytest.mark.parametrize("kind", ["sum", "mean", "prod", "max", "min"])
def test_floats(level: str, shape: tuple[int, ...], axes: tuple[int, ...], keep: bool, kind: str) -> None:
    a = random(shape, "f32") if kind != "prod" else 1 + random(shape, "f32", scale=0.05)
    exact = exact_reduction(a, kind, axes, keep)
    (result,) = run_region(ReduceFamily(), reduce_text(shape, kind, axes, keep, "f32"), [a], [exact.shape], level)
    if kind in ("max", "min"):
        assert (result == exact).all()
        return
    count = int(np.prod([shape[axis] for axis in axes]))
    magnitude = np.abs(a.astype(np.float64)).sum(axis=axes, keepdims=keep) if kind != "prod" else count * np.abs(exact)
    terms = count if kind == "prod" else min(count, 24)  # a cascade: no more roundings than one of its blocks
    scale = magnitude / (count if kind == "mean" else 1)
    assert (np.abs(result - exact) <= scale * terms * 2.0**-24).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["bf16", "f16", "f64", "i64", "i32", "i8"])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_other_elements(level: str, element: str, kind: str, axis: int) -> None:
    a = random((21, 70), element)
    exact = exact_reduction(a, kind, (axis,), False)
    (result,) = run_region(
        ReduceFamily(), reduce_text(a.shape, kind, [axis], False, element), [a], [exact.shape], level
    )
    if kind != "sum" or element.startswith("i"):
        assert (result.astype(np.float64) == exact.astype(np.float64)).all()
    else:
        # One rounding to the element, and the additions before it in f32 (f64 for f64).
        once, carried = {"bf16": (2.0**-9, 2.0**-24), "f16": (2.0**-12, 2.0**-24), "f64": (0.0, 2.0**-53)}[element]
        magnitude = np.abs(a.astype(np.float64)).sum(axis)
        bound = 2 * np.abs(exact) * once + magnitude * 24 * carried
        assert (np.abs(result.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["i1", "f32", "bf16"])
@pytest.mark.parametrize("kind", ["any", "all"])
@pytest.mark.parametrize(("shape", "axes", "keep"), [SHAPES[1], SHAPES[2], SHAPES[3]])
def test_truth(level: str, element: str, kind: str, shape: tuple[int, ...], axes: tuple[int, ...], keep: bool) -> None:
    generator = np.random.default_rng(3)
    chance = 0.02 if kind == "any" else 0.98
    a = (generator.random(shape) < chance).astype(DTYPES[element])
    exact = exact_reduction(a, kind, axes, keep)
    (result,) = run_region(ReduceFamily(), reduce_text(shape, kind, axes, keep, element), [a], [exact.shape], level)
    assert (result.view(np.uint8) == exact.astype(np.uint8)).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["f32", "bf16", "i32", "i64"])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_positions(level: str, element: str, kind: str, axis: int) -> None:
    a = random((5, 37, 20), element)
    exact = exact_reduction(a, kind, (axis,), False)
    (result,) = run_region(
        ReduceFamily(), reduce_text(a.shape, kind, [axis], False, element), [a], [exact.shape], level
    )
    assert (result == exact).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_is_the_extreme_and_infinities_count(level: str, kind: str, axis: int) -> None:
    a = np.array([[1, np.nan, 3, np.nan], [5, 5, np.inf, 1], [-np.inf, 2, 7, np.nan]], np.float32)
    exact = exact_reduction(a, kind, (axis,), False)
    (result,) = run_region(ReduceFamily(), reduce_text(a.shape, kind, [axis], False, "f32"), [a], [exact.shape], level)
    assert largest_error(result, exact) == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(3, 5000), (5000, 3), (1, 1)])
def test_dynamic_sizes(level: str, axis: int, shape: tuple[int, int]) -> None:
    a = random(shape, "f32")
    exact = exact_reduction(a, "mean", (axis,), False)
    text = reduce_text(("?", "?"), "mean", [axis], False, "f32")
    (result,) = run_region(ReduceFamily(), text, [a], [exact.shape], level)
    assert largest_error(result, exact) <= np.abs(a).mean() * 24 * 2.0**-24


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("shape", "axis"), [((2, 1000003), 1), ((100003, 20), 0)])
def test_long_sums_stay_as_exact_as_eager(level: str, shape: tuple[int, int], axis: int) -> None:
    a = random(shape, "f32") + np.float32(3.0)
    exact = exact_reduction(a, "sum", (axis,), False)
    (result,) = run_region(ReduceFamily(), reduce_text(shape, "sum", [axis], False, "f32"), [a], [exact.shape], level)
    eager = torch.from_numpy(a).sum(axis).numpy()
    assert largest_error(result, exact) <= max(
        2 * largest_error(eager, exact), float(np.spacing(np.float32(exact.max())))
    )


@pytest.mark.parametrize("level", LEVELS)
def test_epilogue_on_the_reduced_tensor(level: str) -> None:
    text = """func.func @region(%a: tensor<3x49x70xf32>, %b: tensor<70xf32>) -> tensor<3x70xf32> {
  %r = "lk.reduce"(%a) {kind = "mean", axes = array<i64: 1>, keep_dims = false}
    : (tensor<3x49x70xf32>) -> tensor<3x70xf32>
  %e = tensor.empty() : tensor<3x70xf32>
  %o = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
    affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
    ins(%r, %b : tensor<3x70xf32>, tensor<70xf32>) outs(%e : tensor<3x70xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %s = arith.mulf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<3x70xf32>
  return %o : tensor<3x70xf32>
}"""
    a, b = random((3, 49, 70), "f32", 1), random((70,), "f32", 2)
    (result,) = run_region(ReduceFamily(), text, [a, b], [(3, 70)], level)
    assert largest_error(result, a.astype(np.float64).mean(1) * b) <= 1e-6


def test_another_anchor_is_refused() -> None:
    text = anchored("softmax", [tensor((4,), "f32")], tensor((4,), "f32"), "axis = 0 : i64, log = false")
    _, answer = plan_region(ReduceFamily(), text)
    assert isinstance(answer, Refusal)
    assert "not lk.reduce" in answer.reason


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["f32", "bf16", "i32", "i64"])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
def test_scans(level: str, element: str, kind: str, exclusive: bool, reverse: bool) -> None:
    for shape, axis in (((3, 40), 1), ((4, 5, 37), 1)):
        a = (
            random(shape, element)
            if kind != "prod"
            else np.sign(random(shape, element)) + (random(shape, element) == 0)
        )
        a = a.astype(DTYPES[element])
        wide = a.astype(np.float64) if element in ("f32", "bf16") else a
        ordered = np.flip(wide, axis) if reverse else wide
        function = {"sum": np.cumsum, "prod": np.cumprod, "max": np.maximum.accumulate, "min": np.minimum.accumulate}[
            kind
        ]
        exact = function(ordered, axis=axis)
        if exclusive:
            low, high = (-np.inf, np.inf) if wide.dtype.kind == "f" else (np.iinfo(a.dtype).min, np.iinfo(a.dtype).max)
            start = {"sum": 0, "prod": 1, "max": low, "min": high}[kind]
            head = np.full_like(np.take(exact, [0], axis), start)
            exact = np.concatenate([head, np.take(exact, np.arange(shape[axis] - 1), axis)], axis)
        exact = np.flip(exact, axis) if reverse else exact
        data = tensor(shape, element)
        attributes = (
            f'kind = "{kind}", axis = {axis} : i64, '
            f"exclusive = {str(exclusive).lower()}, reverse = {str(reverse).lower()}"
        )
        (result,) = run_region(
            CumulativeFamily(), anchored("cumulative", [data], data, attributes), [a], [shape], level
        )
        if element.startswith("i"):
            assert (result == exact.astype(a.dtype)).all()
        elif kind == "sum":
            spacing = 2.0**-8 if element == "bf16" else 0.0
            total = np.abs(wide).sum(axis, keepdims=True)
            assert (np.abs(result.astype(np.float64) - exact) <= np.abs(exact) * spacing + total * 40 * 2.0**-24).all()
        else:
            assert (result.astype(np.float64) == exact).all()
