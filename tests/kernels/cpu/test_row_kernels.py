"""Softmax, layer, RMS and group norm kernels against float64; the error of eager sets the budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from lowerkit.targets.cpu.reductions.group_norm import GroupNormFamily
from lowerkit.targets.cpu.reductions.row_norm import RowNormFamily
from lowerkit.targets.cpu.reductions.softmax import SoftmaxFamily
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


def budget(eager: torch.Tensor, exact: torch.Tensor) -> float:
    """Twice the error of eager, or two roundings of the largest result where eager happens to be exact."""
    finite = exact[torch.isfinite(exact)].abs()
    spacing = float(finite.max()) * 2.0**-23 if finite.numel() else 0.0
    return max(2 * largest_error(eager.numpy(), exact.numpy()), 2 * spacing)


def softmax_text(shape: tuple[int | str, ...], element: str, axis: int, log: bool) -> str:
    type_ = tensor(shape, element)
    return anchored("softmax", [type_], type_, f"axis = {axis} : i64, log = {str(log).lower()}")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 37), 1), ((2, 3, 197), 2), ((2, 1, 5), 2), ((4, 1), 1), ((2, 7, 70), 1), ((6, 3), 0), ((3, 9001), 1)],
)
def test_softmax(level: str, log: bool, shape: tuple[int, ...], axis: int) -> None:
    a = random(shape, "f32", scale=4.0)
    a.flat[0] = -np.inf if shape[axis] > 1 else 1.0
    (result,) = run_region(SoftmaxFamily(), softmax_text(shape, "f32", axis, log), [a], [shape], level)
    function = torch.log_softmax if log else torch.softmax
    exact, eager = function(torch.from_numpy(a).double(), axis), function(torch.from_numpy(a), axis)
    assert largest_error(result, exact.numpy()) <= budget(eager, exact)


@pytest.mark.parametrize("level", LEVELS)
def test_softmax_of_nan_and_infinity(level: str) -> None:
    a = np.array([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf] * 3, [1, 2, -np.inf], [88, -200, 1e38]], np.float32)
    (result,) = run_region(SoftmaxFamily(), softmax_text((5, 3), "f32", 1, False), [a], [a.shape], level)
    assert largest_error(result, torch.softmax(torch.from_numpy(a), 1).numpy()) <= 2.0**-24
    assert result[3, 2] == 0.0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_softmax_of_narrow_floats_rounds_once(level: str, element: str) -> None:
    a = random((4, 100), element, scale=3.0)
    (result,) = run_region(SoftmaxFamily(), softmax_text((4, 100), element, 1, False), [a], [a.shape], level)
    wide = torch.softmax(torch.from_numpy(a.astype(np.float32)).double(), 1).numpy()
    spacing = 2.0**-8 if element == "bf16" else 2.0**-11
    assert (np.abs(result.astype(np.float64) - wide) <= wide * spacing * 1.001 + 1e-7).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(3, 5), (1, 300), (20, 64)])
def test_softmax_of_dynamic_sizes(level: str, shape: tuple[int, int]) -> None:
    a = random(shape, "f32")
    (result,) = run_region(SoftmaxFamily(), softmax_text(("?", "?"), "f32", 1, False), [a], [shape], level)
    exact, eager = torch.softmax(torch.from_numpy(a).double(), 1), torch.softmax(torch.from_numpy(a), 1)
    assert largest_error(result, exact.numpy()) <= budget(eager, exact)


@pytest.mark.parametrize("level", LEVELS)
def test_epilogue_permutes_adds_and_narrows(level: str) -> None:
    text = """func.func @region(%a: tensor<2x3x40xf32>, %b: tensor<3x2x40xf32>) -> tensor<3x2x40xbf16> {
  %r = "lk.softmax"(%a) {axis = 2 : i64, log = false} : (tensor<2x3x40xf32>) -> tensor<2x3x40xf32>
  %e = tensor.empty() : tensor<3x2x40xbf16>
  %q = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (j, i, k)>, affine_map<(i, j, k) -> (i, j, k)>,
      affine_map<(i, j, k) -> (i, j, k)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%r, %b : tensor<2x3x40xf32>, tensor<3x2x40xf32>) outs(%e : tensor<3x2x40xbf16>) {
  ^bb0(%x: f32, %y: f32, %o: bf16):
    %s = arith.addf %x, %y : f32
    %z = arith.truncf %s : f32 to bf16
    linalg.yield %z : bf16
  } -> tensor<3x2x40xbf16>
  return %q : tensor<3x2x40xbf16>
}"""
    a, b = random((2, 3, 40), "f32", 1), random((3, 2, 40), "f32", 2)
    (result,) = run_region(SoftmaxFamily(), text, [a, b], [b.shape], level)
    expected = torch.softmax(torch.from_numpy(a), 2).numpy().transpose(1, 0, 2) + b
    assert (np.abs(result.astype(np.float32) - expected) <= np.abs(expected) * 2.0**-8 + 1e-7).all()


def test_softmax_in_f64_is_refused() -> None:
    _, answer = plan_region(SoftmaxFamily(), softmax_text((4, 4), "f64", 1, False))
    assert isinstance(answer, Refusal)
    assert "f64" in answer.reason


def norm_text(kind: str, shape: tuple[int, ...], rank: int, element: str, affine: str) -> str:
    data, parameter = tensor(shape, element), tensor(shape[len(shape) - rank :], affine)
    count = 2 if kind == "layer_norm" else 1
    sizes = ", ".join(["1"] * (1 + count))
    attributes = f"normalized_rank = {rank} : i64, epsilon = 0.00001 : f64, operandSegmentSizes = array<i32: {sizes}>"
    return anchored(kind, [data, *[parameter] * count], data, attributes)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize(
    ("shape", "rank"), [((3, 37), 1), ((2, 5, 768), 1), ((2, 3, 4, 5), 2), ((2, 20000), 1), ((3, 1), 1)]
)
def test_row_norm(level: str, kind: str, offset: float, shape: tuple[int, ...], rank: int) -> None:
    a = random(shape, "f32") + np.float32(offset)
    scale, bias = (random(shape[len(shape) - rank :], "f32", seed) for seed in (1, 2))
    operands = [a, scale, bias] if kind == "layer_norm" else [a, scale]
    (result,) = run_region(RowNormFamily(), norm_text(kind, shape, rank, "f32", "f32"), operands, [shape], level)

    def reference(dtype: torch.dtype) -> torch.Tensor:
        x, s, b = (torch.from_numpy(array).to(dtype) for array in (a, scale, bias))
        if kind == "layer_norm":
            return functional.layer_norm(x, list(s.shape), s, b, 1e-5)
        return functional.rms_norm(x, list(s.shape), s, 1e-5)

    exact = reference(torch.float64)
    assert largest_error(result, exact.numpy()) <= budget(reference(torch.float32), exact)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("element", "affine", "spacing"),
    [("bf16", "f32", 2.0**-8), ("bf16", "bf16", 2.0**-8), ("f16", "f16", 2.0**-11), ("f64", "f64", 2.0**-48)],
)
def test_layer_norm_of_other_types_rounds_once(level: str, element: str, affine: str, spacing: float) -> None:
    a, scale, bias = random((4, 77), element), random((77,), affine, 1), random((77,), affine, 2)
    text = norm_text("layer_norm", (4, 77), 1, element, affine)
    (result,) = run_region(RowNormFamily(), text, [a, scale, bias], [(4, 77)], level)
    x, s, b = (torch.from_numpy(array.astype(np.float64)) for array in (a, scale, bias))
    exact = functional.layer_norm(x, [77], s, b, 1e-5).numpy()
    assert (np.abs(result.astype(np.float64) - exact) <= np.abs(exact) * spacing + 2.0**-20 * spacing**0.25).all()


@pytest.mark.parametrize("level", LEVELS)
def test_a_large_mean_does_not_cancel(level: str) -> None:
    a = random((4, 768), "f32") + np.float32(1e4)
    one, zero = np.ones(768, np.float32), np.zeros(768, np.float32)
    (result,) = run_region(
        RowNormFamily(), norm_text("layer_norm", a.shape, 1, "f32", "f32"), [a, one, zero], [a.shape], level
    )
    exact = functional.layer_norm(torch.from_numpy(a).double(), [768], eps=1e-5).numpy()
    assert largest_error(result, exact) <= 4e-6


@pytest.mark.parametrize("level", LEVELS)
def test_nan_stays_in_its_row(level: str) -> None:
    a = random((3, 50), "f32")
    a[1, 7] = np.nan
    one = np.ones(50, np.float32)
    (result,) = run_region(RowNormFamily(), norm_text("rms_norm", a.shape, 1, "f32", "f32"), [a, one], [a.shape], level)
    assert np.isnan(result[1]).all()
    assert np.isfinite(result[[0, 2]]).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("offset", [0.0, 500.0])
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 12, 7, 9), 3), ((1, 320, 4, 4), 32), ((2, 6, 5), 6), ((2, 8), 2), ((1, 4, 300), 1),
     ((2, 40, 37), 20), ((1, 33, 300), 33), ((2, 64, 5), 8)],
)  # fmt: skip
def test_group_norm(level: str, channels_last: bool, offset: float, shape: tuple[int, ...], groups: int) -> None:
    first = random(shape, "f32") + np.float32(offset)
    scale, bias = (random(shape[1:2], "f32", seed) for seed in (1, 2))

    def moved(array: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if channels_last else array

    data = tensor(moved(first).shape, "f32")
    parameter = tensor(shape[1:2], "f32")
    attributes = (
        f"groups = {groups} : i64, epsilon = 0.00001 : f64, channels_last = {str(channels_last).lower()}, "
        "operandSegmentSizes = array<i32: 1, 1, 1>"
    )
    text = anchored("group_norm", [data, parameter, parameter], data, attributes)
    (result,) = run_region(GroupNormFamily(), text, [moved(first), scale, bias], [moved(first).shape], level)

    def reference(dtype: torch.dtype) -> torch.Tensor:
        x, s, b = (torch.from_numpy(array).to(dtype) for array in (first, scale, bias))
        return functional.group_norm(x, groups, s, b, 1e-5)

    exact = reference(torch.float64)
    assert largest_error(result, moved(exact.numpy())) <= budget(reference(torch.float32), exact)


@pytest.mark.parametrize("level", LEVELS)
def test_nan_stays_in_its_group_of_a_vector(level: str) -> None:
    data = random((1, 50, 24), "f32")
    data[0, 7, 5] = np.nan
    one, zero = np.ones(24, np.float32), np.zeros(24, np.float32)
    kind, parameter = tensor(data.shape, "f32"), tensor((24,), "f32")
    attributes = (
        "groups = 12 : i64, epsilon = 0.00001 : f64, channels_last = true, operandSegmentSizes = array<i32: 1, 1, 1>"
    )
    text = anchored("group_norm", [kind, parameter, parameter], kind, attributes)
    (result,) = run_region(GroupNormFamily(), text, [data, one, zero], [data.shape], level)
    assert np.isnan(result[0, :, 4:6]).all()
    assert np.isfinite(np.delete(result[0], [4, 5], axis=1)).all()


@pytest.mark.parametrize("element", sorted(set(DTYPES) - {"f64", "f32", "f16", "bf16"}))
def test_integer_rows_are_no_softmax(element: str) -> None:
    text = anchored(
        "reduce", [tensor((4,), element)], tensor((), "i1"), 'kind = "any", axes = array<i64: 0>, keep_dims = false'
    )
    _, answer = plan_region(SoftmaxFamily(), text)
    assert isinstance(answer, Refusal)
    assert "not lk.softmax" in answer.reason
