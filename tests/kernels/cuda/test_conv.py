"""Convolutions on tensor cores on the simulated device, against the op's reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import ConvOp, IntegerConvOp
from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.families.windows.conv_layouts import TAPS_CHANNELS
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import random
from tests.support.suite.randomness import RANDOM
from tests.support.targets.cuda_kernels import compile_cuda
from tests.support.targets.cuda_windows import hold, planned, with_weights

Shape = Sequence[int | None]


def conv(
    shape: Shape, taps: Sequence[int], element: str = "bf16", *, weight: bool = True, **options: Any
) -> RegionView:
    """A convolution, channels last."""
    options = {"channels_last": True} | options
    operands = [(shape, element), (taps, element)]
    return with_weights(operands, lambda x, w: ConvOp.build(x, w, **options), [1] if weight else [])


# What a case is telling for: the way through K, tails of tiles, the window, the number of dims.
CASES: dict[str, tuple[Shape, Sequence[int], str, dict[str, Any]]] = {
    "one step of a whole tile": ((1, 8, 8, 16), (16, 16, 1, 1), "bf16", {}),
    "tails of rows, columns and K": ((3, 5, 7, 40), (20, 40, 1, 1), "bf16", {}),
    "steps within taps": ((1, 7, 6, 64), (24, 64, 3, 3), "bf16", {"padding": 1}),
    "two steps in each tap": ((1, 5, 5, 256), (16, 256, 1, 2), "f16", {}),
    "flat, whole vectors": ((2, 6, 5, 8), (33, 8, 3, 3), "f16", {"padding": [0, 1, 2, 0]}),
    "flat, three channels": ((2, 15, 17, 3), (24, 3, 7, 7), "bf16", {"strides": 2, "padding": 3}),
    "flat, one step": ((1, 9, 9, 1), (8, 1, 3, 3), "bf16", {}),
    "strides without taps": ((2, 7, 7, 32), (16, 32, 1, 1), "bf16", {"strides": 2}),
    "strides and dilation": ((1, 15, 14, 16), (16, 16, 3, 3), "bf16", {"strides": [2, 3], "dilation": [3, 2]}),
    "one pixel": ((1, 3, 3, 16), (40, 16, 3, 3), "bf16", {}),
    "groups": ((1, 6, 5, 48), (32, 24, 3, 3), "bf16", {"groups": 2, "padding": 1}),
    "groups of four channels": ((1, 5, 5, 16), (24, 4, 3, 3), "f16", {"groups": 4}),
    "one dim": ((2, 21, 24), (18, 24, 5), "bf16", {"strides": 2, "padding": 2}),
    "three dims": ((1, 4, 5, 3, 16), (16, 16, 2, 3, 1), "bf16", {"padding": [1, 0, 1, 1, 0, 0]}),
    "channels second": ((2, 20, 6, 7), (24, 20, 3, 3), "bf16", {"channels_last": False, "padding": 1}),
    "f32": ((2, 7, 6, 12), (20, 12, 3, 3), "f32", {"padding": 1}),
    "f32, pixels as they are": ((1, 5, 9, 40), (33, 40, 1, 1), "f32", {}),
}


ALSO_BEFORE_HOPPER = ["tails of rows, columns and K", "steps within taps", "flat, three channels", "groups", "f32"]


@pytest.mark.variants("level")
@pytest.mark.parametrize(
    ("name", "level"), [*((name, "sm_90") for name in CASES), *((name, "sm_80") for name in ALSO_BEFORE_HOPPER)]
)
def test_matches_the_reference(name: str, level: str) -> None:
    shape, taps, element, options = CASES[name]
    hold(conv(shape, taps, element, **options), "conv", [[size or 0 for size in shape], taps], level)


def test_the_way_through_k_is_the_one_that_is_meant() -> None:
    for name, (shape, taps, element, options) in CASES.items():
        note = planned(conv(shape, taps, element, **options)).note
        if name.startswith("flat"):
            assert " flat" in note, name
    assert "within taps" in planned(conv(*CASES["steps within taps"][:2], padding=1)).note


@pytest.mark.variants("level")
@pytest.mark.parametrize(("element", "level"), [("f32", "sm_90"), ("bf16", "sm_80"), ("bf16", "sm_90")])
def test_k_in_parts(element: str, level: str) -> None:
    """Few pixels and a long K: the parts are summed in one launch, added in another."""
    view = conv((1, 3, 3, 512), (16, 512, 3, 3), element, padding=1)
    plan = hold(view, "conv", [(1, 3, 3, 512), (16, 512, 3, 3)], level)
    first, second = plan.function.launches
    assert len(plan.function.temporaries) == 1
    assert first.written == plan.function.temporaries[0] == second.read
    assert "parts" in plan.note


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_an_open_batch(batch: int) -> None:
    view = conv((None, 5, 5, 16), (24, 16, 3, 3), padding=1)
    hold(view, "conv", [(batch, 5, 5, 16), (24, 16, 3, 3)])


@pytest.mark.parametrize("sizes", [(1, 4), (6, 5)])
def test_open_images(sizes: tuple[int, int]) -> None:
    view = conv((2, None, None, 3), (24, 3, 3, 3), padding=1, strides=2)
    hold(view, "conv", [(2, *sizes, 3), (24, 3, 3, 3)], "sm_80")


@pytest.mark.parametrize("options", [{"padding": 1}, {"channels_last": False}])
def test_a_filter_that_is_no_weight_is_read_where_it_lies(options: dict[str, Any]) -> None:
    shapes = [(1, 20, 6, 7) if "channels_last" in options else (1, 6, 7, 20), (24, 20, 3, 3)]
    view = conv(shapes[0], shapes[1], weight=False, **options)
    assert not planned(view).packings
    hold(view, "conv", shapes)


def test_a_filter_is_packed_once_for_all_levels() -> None:
    view = conv((1, 6, 7, 20), (24, 20, 3, 3))
    layouts = {level: planned(view, level).layouts() for level in ("sm_80", "sm_90", "sm_100")}
    assert all(each == {1: TAPS_CHANNELS} for each in layouts.values())
    array = random((5, 3, 2, 4), "f32")
    packed = TAPS_CHANNELS.apply(array)
    assert packed.shape == TAPS_CHANNELS.packed_shape(array.shape) == (5, 2, 4, 3)
    assert packed[4, 1, 2, 0] == array[4, 0, 1, 2]


def test_padding_meets_infinity_as_in_eager() -> None:
    """Zero times infinity is NaN, also where the zero is padding."""
    view = conv((1, 4, 4, 16), (16, 16, 3, 3), "f32", padding=1)
    inputs = [random((1, 4, 4, 16), "f32"), random((16, 16, 3, 3), "f32", seed=1)]
    inputs[1][3, 2, 0, 0] = np.inf
    hold(view, "conv", [], inputs=inputs)


BLOCK = """
#all = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#channel = affine_map<(d0, d1, d2, d3) -> (d3)>
func.func @region(%x: tensor<{n}x{s}x{s}x{c}xbf16>, %w: tensor<{o}x{c}x{k}x{k}xbf16>, %scale: tensor<{o}xf32>,
                  %shift: tensor<{o}xf32>, %y: tensor<{n}x{s}x{s}x{o}xbf16>) -> tensor<{n}x{s}x{s}x{o}xbf16> {{
  %zero = arith.constant 0.0 : bf16
  %0 = "lk.conv"(%x, %w) {{accumulate = f32, channels_last = true, dilation = array<i64: 1, 1>, groups = 1 : i64,
      padding = array<i64: {p}, {p}, {p}, {p}>, strides = array<i64: 1, 1>}}
      : (tensor<{n}x{s}x{s}x{c}xbf16>, tensor<{o}x{c}x{k}x{k}xbf16>) -> tensor<{n}x{s}x{s}x{o}xbf16>
  %1 = tensor.empty() : tensor<{n}x{s}x{s}x{o}xbf16>
  %2 = linalg.generic {{indexing_maps = [#all, #channel, #channel, #all, #all],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
      ins(%0, %scale, %shift, %y : tensor<{n}x{s}x{s}x{o}xbf16>, tensor<{o}xf32>, tensor<{o}xf32>,
          tensor<{n}x{s}x{s}x{o}xbf16>) outs(%1 : tensor<{n}x{s}x{s}x{o}xbf16>) {{
  ^bb0(%a: bf16, %b: f32, %c: f32, %d: bf16, %out: bf16):
    %3 = arith.extf %a : bf16 to f32
    %4 = arith.mulf %3, %b : f32
    %5 = arith.addf %4, %c : f32
    %6 = arith.truncf %5 : f32 to bf16
    %7 = arith.addf %6, %d : bf16
    %8 = arith.maximumf %7, %zero : bf16
    linalg.yield %8 : bf16
  }} -> tensor<{n}x{s}x{s}x{o}xbf16>
  return %2 : tensor<{n}x{s}x{s}x{o}xbf16>
}}
"""
"""A batch norm, a residual sum and a relu behind a convolution of ``n`` images of ``s x s x c``."""


def block(n: int, s: int, c: int, o: int, k: int) -> RegionView:
    """The region of :data:`BLOCK`, padded so that the size stays."""
    return RegionView.from_text(BLOCK.format(n=n, s=s, c=c, o=o, k=k, p=k // 2), "conv", ["", "w", "a", "b", ""])


@pytest.mark.parametrize("sizes", [(2, 5, 24, 40, 1), (1, 4, 16, 24, 3), (1, 3, 512, 32, 3)])
def test_epilogues(sizes: tuple[int, int, int, int, int]) -> None:
    """The last with K in parts."""
    n, s, c, o, k = sizes
    plan = hold(block(*sizes), "conv", [(n, s, s, c), (o, c, k, k), (o,), (o,), (n, s, s, o)])
    assert (len(plan.function.launches) == 2) == (c == 512)


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (conv((1, 5, 5, 4), (4, 4, 3, 3), "f64"), "elements of f64"),
        (conv((1, 5, 5, 4), (4, 1, 3, 3), groups=4), "no channels are summed"),
        (conv((1, 5, 5, None), (4, 4, 3, 3)), "an open number of channels"),
        (conv((0, 5, 5, 4), (4, 4, 3, 3)), "nothing to compute"),
    ],
)
def test_refusals(view: RegionView, reason: str) -> None:
    refusals = dict(select_kernels(view, "sm_90")[1])
    assert reason in refusals["conv"]


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(
    "view",
    [
        block(64, 56, 64, 256, 1),
        block(64, 14, 256, 256, 3),
        conv((64, 224, 224, 3), (64, 3, 7, 7), strides=2, padding=3),
        block(1, 7, 512, 512, 3),
    ],
    ids=["1x1", "3x3", "first", "parts"],
)
def test_nothing_is_spilled_at_full_size(view: RegionView, level: str) -> None:
    if ptxas.find_ptxas() is None:
        pytest.skip("there is no ptxas")
    (variant,) = unpack(compile_cuda(view, level, fast=True).code, {}).variants
    for name, place in variant.kernels.items():
        assert place.kernel.registers > 0, name
        assert place.kernel.spills == 0, name


INTEGERS: dict[str, tuple[Shape, Sequence[int], dict[str, Any]]] = {
    "signed": ((1, 6, 5, 64), (24, 64, 3, 3), {"padding": 1, "padding_value": -7}),
    "unsigned": ((1, 6, 5, 64), (24, 64, 3, 3), {"padding": 1, "padding_value": 131, "unsigned": True}),
    "unsigned, flat": ((2, 9, 9, 3), (17, 3, 3, 3), {"padding": 1, "padding_value": 200, "unsigned": True}),
    "one tap": ((1, 5, 5, 40), (16, 40, 1, 1), {"unsigned": True}),
    "groups": ((1, 5, 5, 32), (40, 16, 3, 3), {"groups": 2}),
}


@pytest.mark.variants("level")
@pytest.mark.parametrize(
    ("name", "level"), [*((name, "sm_90") for name in INTEGERS), ("signed", "sm_80"), ("unsigned, flat", "sm_80")]
)
def test_bytes_give_the_same_integers(name: str, level: str) -> None:
    shape, taps, options = INTEGERS[name]
    options = {"channels_last": True} | options
    view = with_weights([(shape, "i8"), (taps, "i8")], lambda x, w: IntegerConvOp.build(x, w, **options), [1])
    inputs = [RANDOM.integers(-128, 128, [size or 0 for size in sizes]).astype(np.int8) for sizes in (shape, taps)]
    hold(view, "conv", [], level, inputs)


def test_parts_of_bytes() -> None:
    shapes = [(1, 3, 3, 1024), (16, 1024, 3, 3)]
    operands = [(shape, "i8") for shape in shapes]
    view = with_weights(
        operands, lambda x, w: IntegerConvOp.build(x, w, channels_last=True, padding=1, unsigned=True), [1]
    )
    inputs = [RANDOM.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    assert len(hold(view, "conv", [], inputs=inputs).function.launches) == 2
