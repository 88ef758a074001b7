"""Depthwise convolutions on the simulated device, against the op's reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import ConvOp, IntegerConvOp
from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.families.windows.conv_layouts import TAPS_OUTPUTS
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import random
from tests.support.suite.randomness import RANDOM
from tests.support.targets.cuda_kernels import compile_cuda
from tests.support.targets.cuda_windows import hold, planned, with_weights

Shape = Sequence[int | None]


def depthwise(shape: Shape, taps: Sequence[int], element: str, *, weight: bool = True, **options: Any) -> RegionView:
    """A convolution of groups of one channel, channels last."""
    options = {"channels_last": True, "groups": taps[0]} | options
    operands = [(shape, element), (taps, element)]
    return with_weights(operands, lambda x, w: ConvOp.build(x, w, **options), [1] if weight else [])


CASES: dict[str, tuple[Shape, Sequence[int], str, dict[str, Any]]] = {
    "whole tiles": ((1, 8, 8, 64), (64, 1, 3, 3), "bf16", {"padding": 1}),
    "tails": ((2, 7, 5, 72), (72, 1, 3, 3), "f16", {"padding": 1}),
    "channels that are no vector": ((1, 6, 6, 19), (19, 1, 3, 3), "bf16", {"padding": [1, 0, 0, 1]}),
    "strides and dilation": ((1, 13, 15, 32), (32, 1, 3, 3), "bf16", {"strides": [2, 3], "dilation": [3, 2]}),
    "f32": ((1, 9, 6, 24), (24, 1, 3, 3), "f32", {"padding": 1, "strides": 2}),
    "two outputs of a channel": ((1, 5, 6, 12), (24, 1, 3, 3), "bf16", {"groups": 12, "padding": 1}),
    "one tap": ((1, 5, 4, 32), (32, 1, 1, 1), "bf16", {}),
    "many taps": ((1, 9, 9, 16), (16, 1, 7, 7), "bf16", {"padding": 3}),
    "one dim": ((2, 20, 16), (16, 1, 5), "f16", {"padding": 2}),
    "three dims": ((1, 4, 3, 5, 16), (16, 1, 2, 3, 2), "bf16", {"padding": [0, 1, 1, 1, 1, 0]}),
    "channels second": ((2, 20, 6, 7), (20, 1, 3, 3), "bf16", {"channels_last": False, "padding": 1}),
}


@pytest.mark.variants("level")
@pytest.mark.parametrize(("name", "level"), [*((name, "sm_90") for name in CASES), ("tails", "sm_80")])
def test_matches_the_reference(name: str, level: str) -> None:
    shape, taps, element, options = CASES[name]
    hold(depthwise(shape, taps, element, **options), "depthwise", [[size or 0 for size in shape], taps], level)


@pytest.mark.parametrize("sizes", [(0, 5, 5), (1, 4, 6), (3, 6, 5)])
def test_open_extents(sizes: tuple[int, int, int]) -> None:
    view = depthwise((None, None, None, 24), (24, 1, 3, 3), "bf16", padding=1, strides=2)
    hold(view, "depthwise", [(*sizes, 24), (24, 1, 3, 3)])


@pytest.mark.parametrize("last", [True, False])
def test_a_filter_that_is_no_weight(last: bool) -> None:
    shapes = [(1, 5, 6, 20) if last else (1, 20, 5, 6), (20, 1, 3, 3)]
    view = depthwise(shapes[0], shapes[1], "bf16", weight=False, channels_last=last)
    assert not planned(view).packings
    hold(view, "depthwise", shapes)


def test_a_filter_lies_by_taps() -> None:
    assert planned(depthwise((1, 5, 5, 20), (20, 1, 3, 3), "bf16")).layouts() == {1: TAPS_OUTPUTS}
    array = random((5, 1, 2, 4), "f32")
    packed = TAPS_OUTPUTS.apply(array)
    assert packed.shape == TAPS_OUTPUTS.packed_shape(array.shape) == (2, 4, 5)
    assert packed[1, 2, 4] == array[4, 0, 1, 2]


@pytest.mark.parametrize("options", [{"padding_value": -9}, {"padding_value": 150, "unsigned": True}])
def test_bytes_give_the_same_integers(options: dict[str, Any]) -> None:
    shapes = [(1, 6, 5, 24), (24, 1, 3, 3)]
    options = {"channels_last": True, "groups": 24, "padding": 1} | options
    view = with_weights([(shape, "i8") for shape in shapes], lambda x, w: IntegerConvOp.build(x, w, **options), [1])
    inputs = [RANDOM.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    hold(view, "depthwise", [], inputs=inputs)


RELU = """
#all = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#channel = affine_map<(d0, d1, d2, d3) -> (d3)>
func.func @region(%x: tensor<2x6x5x20xf32>, %w: tensor<20x1x3x3xf32>, %b: tensor<20xf32>) -> tensor<2x6x5x20xf32> {
  %zero = arith.constant 0.0 : f32
  %0 = "lk.conv"(%x, %w) {accumulate = f32, channels_last = true, dilation = array<i64: 1, 1>, groups = 20 : i64,
      padding = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>}
      : (tensor<2x6x5x20xf32>, tensor<20x1x3x3xf32>) -> tensor<2x6x5x20xf32>
  %1 = tensor.empty() : tensor<2x6x5x20xf32>
  %2 = linalg.generic {indexing_maps = [#all, #channel, #all],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%0, %b : tensor<2x6x5x20xf32>, tensor<20xf32>) outs(%1 : tensor<2x6x5x20xf32>) {
  ^bb0(%a: f32, %c: f32, %out: f32):
    %3 = arith.addf %a, %c : f32
    %4 = arith.maximumf %3, %zero : f32
    linalg.yield %4 : f32
  } -> tensor<2x6x5x20xf32>
  return %2 : tensor<2x6x5x20xf32>
}
"""


def test_an_epilogue() -> None:
    view = RegionView.from_text(RELU, "conv", ["", "w", "b"])
    hold(view, "depthwise", [(2, 6, 5, 20), (20, 1, 3, 3), (20,)])


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("shape", "stride"), [((64, 112, 112, 96), 2), ((1, 7, 7, 960), 1)])
def test_nothing_is_spilled_at_full_size(shape: tuple[int, ...], stride: int, level: str) -> None:
    if ptxas.find_ptxas() is None:
        pytest.skip("there is no ptxas")
    view = depthwise(shape, (shape[3], 1, 3, 3), "bf16", padding=1, strides=stride)
    (variant,) = unpack(compile_cuda(view, level, fast=True).code, {}).variants
    for name, place in variant.kernels.items():
        assert place.kernel.registers > 0, name
        assert place.kernel.spills == 0, name
