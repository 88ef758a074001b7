"""Pools on the simulated device, against the op's reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import AvgPoolOp, MaxPoolOp
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import random
from tests.support.targets.cuda_windows import hold, with_weights

Shape = Sequence[int | None]


def pool(shape: Shape, element: str, *, largest: bool, **options: Any) -> RegionView:
    """A pool, channels last."""
    options = {"channels_last": True} | options
    build = MaxPoolOp.build if largest else AvgPoolOp.build
    return with_weights([(shape, element)], lambda x: build(x, **options), [])


LARGEST: dict[str, tuple[Shape, str, dict[str, Any]]] = {
    "whole tiles": ((1, 8, 8, 64), "bf16", {"kernel": 2}),
    "tails": ((2, 9, 7, 72), "f16", {"kernel": 3, "strides": 2, "padding": 1}),
    "f32 and dilation": ((1, 9, 10, 19), "f32", {"kernel": [2, 3], "strides": 1, "dilation": [3, 2]}),
    "bytes": ((1, 7, 7, 20), "i8", {"kernel": 3, "strides": 2, "padding": 1}),
    "long integers": ((1, 7, 7, 6), "i64", {"kernel": 3, "strides": 2, "padding": 1}),
    "channels second": ((2, 5, 9, 8), "bf16", {"kernel": 3, "strides": 2, "padding": 1, "channels_last": False}),
    "many taps": ((1, 9, 9, 16), "bf16", {"kernel": 7, "strides": 1, "padding": 3}),
    "one dim": ((2, 20, 16), "f32", {"kernel": 3}),
    "three dims": ((1, 4, 5, 6, 16), "bf16", {"kernel": 2, "strides": [1, 2, 2]}),
}
MEANS: dict[str, tuple[Shape, str, dict[str, Any]]] = {
    "padding counts": ((1, 9, 8, 24), "bf16", {"kernel": 3, "strides": 2, "padding": 1}),
    "padding does not count": (
        (2, 9, 8, 24), "f16", {"kernel": 3, "strides": 2, "padding": 1, "count_include_pad": False}
    ),
    "ceil mode": ((1, 8, 8, 8), "f32", {"kernel": 3, "strides": 2, "padding": [0, 1, 1, 1], "ceil_extra": [1, 0]}),
    "a divisor": ((1, 6, 6, 8), "bf16", {"kernel": 2, "divisor": 3}),
    "dilation": ((1, 9, 9, 10), "f32", {
        "kernel": 3, "strides": 2, "padding": 2, "dilation": 2, "count_include_pad": False,
    }),
    "channels second": ((2, 5, 7, 7), "bf16", {
        "kernel": 3, "strides": 2, "padding": 1, "channels_last": False, "count_include_pad": False,
    }),
    "all of an image": ((2, 7, 7, 40), "bf16", {"kernel": 7}),
}  # fmt: skip


@pytest.mark.variants("level")
@pytest.mark.parametrize(("name", "level"), [*((name, "sm_90") for name in LARGEST), ("tails", "sm_80")])
def test_the_largest_matches_the_reference(name: str, level: str) -> None:
    shape, element, options = LARGEST[name]
    hold(pool(shape, element, largest=True, **options), "pool", [[size or 0 for size in shape]], level)


@pytest.mark.variants("level")
@pytest.mark.parametrize(("name", "level"), [*((name, "sm_90") for name in MEANS), ("padding counts", "sm_80")])
def test_the_mean_matches_the_reference(name: str, level: str) -> None:
    shape, element, options = MEANS[name]
    hold(pool(shape, element, largest=False, **options), "pool", [[size or 0 for size in shape]], level)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("sizes", [(0, 5, 5), (1, 4, 6), (3, 7, 5)])
def test_open_extents(largest: bool, sizes: tuple[int, int, int]) -> None:
    options = {} if largest else {"count_include_pad": False}
    view = pool((None, None, None, 24), "bf16", largest=largest, kernel=3, strides=2, padding=1, **options)
    hold(view, "pool", [(*sizes, 24)])


def test_nan_wins_and_padding_does_not() -> None:
    """A window that lies in the padding alone gives minus infinity."""
    view = pool((1, 4, 4, 8), "bf16", largest=True, kernel=2, strides=2, padding=[2, 0, 0, 0])
    x = random((1, 4, 4, 8), "bf16") - np.asarray(9, "f4").astype("f4")
    x = x.astype(random((1,), "bf16").dtype)
    x[0, 1, 2, 3] = np.nan
    x[0, 3, 3, :] = -np.inf
    hold(view, "pool", [], inputs=[x])


def test_an_epilogue() -> None:
    text = """
    #all = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
    func.func @region(%x: tensor<1x6x6x20xf32>) -> tensor<1x3x3x20xf32> {
      %0 = "lk.max_pool"(%x) {channels_last = true, dilation = array<i64: 1, 1>, kernel = array<i64: 2, 2>,
          padding = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<1x6x6x20xf32>) -> tensor<1x3x3x20xf32>
      %1 = tensor.empty() : tensor<1x3x3x20xf32>
      %2 = linalg.generic {indexing_maps = [#all, #all],
          iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
          ins(%0 : tensor<1x3x3x20xf32>) outs(%1 : tensor<1x3x3x20xf32>) {
      ^bb0(%a: f32, %out: f32):
        %3 = arith.mulf %a, %a : f32
        linalg.yield %3 : f32
      } -> tensor<1x3x3x20xf32>
      return %2 : tensor<1x3x3x20xf32>
    }"""
    hold(RegionView.from_text(text, "pool"), "pool", [(1, 6, 6, 20)])


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (pool((1, 5, 5, 4), "f64", largest=True, kernel=2), "elements of f64"),
        (pool((1, 5, 5, None), "f32", largest=False, kernel=2), "an open number of channels"),
        (pool((1, 5, 5, 0), "f32", largest=True, kernel=2), "nothing to compute"),
    ],
)
def test_refusals(view: RegionView, reason: str) -> None:
    refusals = dict(select_kernels(view, "sm_90")[1])
    assert reason in refusals["pool"]
