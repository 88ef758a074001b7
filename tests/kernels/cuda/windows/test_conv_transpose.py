"""Transposed convolutions on the simulated device, against the op's reference in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from lowerkit.dialect import ConvTransposeOp
from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.families.windows.conv_layouts import INPUTS_TAPS_CHANNELS, INPUTS_TAPS_OUTPUTS
from lowerkit.targets.cuda.families.windows.transposed import TransposedFamily
from lowerkit.targets.cuda.families.windows.transposed_depthwise import TransposedDepthwiseFamily
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.packing import Packing
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import random
from tests.support.targets.cuda_kernels import compile_cuda
from tests.support.targets.cuda_windows import hold, planned, with_weights

Shape = Sequence[int | None]


def transposed(
    shape: Shape, taps: Sequence[int], element: str = "bf16", *, weight: bool = True, **options: Any
) -> RegionView:
    """A transposed convolution, channels last."""
    options = {"channels_last": True} | options
    operands = [(shape, element), (taps, element)]
    return with_weights(operands, lambda x, w: ConvTransposeOp.build(x, w, **options), [1] if weight else [])


# What a case is telling for: how phases and taps meet, tails of tiles, the number of dims.
CASES: dict[str, tuple[Shape, Sequence[int], str, dict[str, Any]]] = {
    "phases apart": ((1, 5, 6, 32), (32, 24, 2, 2), "bf16", {"strides": 2}),
    "two taps in each phase": ((1, 5, 6, 40), (40, 20, 4, 4), "bf16", {"strides": 2, "padding": 1}),
    "phases of one tap and of two": ((2, 4, 5, 16), (16, 16, 3, 3), "f16", {"strides": 2, "padding": 1}),
    "a last row of some phases": (
        (1, 4, 5, 16), (16, 33, 3, 3), "bf16", {"strides": 2, "padding": [0, 1, 1, 1], "output_padding": 1}
    ),
    "phases without a tap": ((2, 4, 5, 16), (16, 16, 2, 1), "f16", {"strides": 3}),
    "stride and dilation share a factor": (
        (1, 6, 5, 16), (16, 16, 3, 3), "bf16", {"strides": [4, 2], "dilation": [2, 3], "padding": [1, 2, 0, 1]}
    ),
    "strides and dilation without one": (
        (1, 4, 3, 16), (16, 16, 3, 4), "f16", {"strides": [3, 5], "dilation": [2, 3], "padding": 2}
    ),
    "no stride": ((1, 5, 4, 24), (24, 16, 3, 3), "bf16", {"padding": 1}),
    "one pixel": ((2, 1, 1, 32), (32, 64, 4, 4), "bf16", {}),
    "two steps in each tap": ((1, 3, 3, 256), (256, 16, 4, 4), "bf16", {"strides": 2, "padding": 1}),
    "groups": ((1, 4, 5, 24), (24, 6, 3, 3), "bf16", {"strides": 2, "groups": 3}),
    "one dim": ((2, 9, 32), (32, 16, 8), "bf16", {"strides": 4, "padding": 2}),
    "three dims": ((1, 3, 4, 2, 16), (16, 16, 2, 3, 2), "bf16", {"strides": [2, 1, 2]}),
    "channels second": (
        (2, 16, 5, 4), (16, 20, 4, 4), "bf16", {"strides": 2, "padding": 1, "channels_last": False}
    ),
    "f32": ((1, 4, 5, 20), (20, 12, 3, 3), "f32", {"strides": 2, "padding": 1}),
}  # fmt: skip
DEPTHWISE: dict[str, tuple[Shape, Sequence[int], str, dict[str, Any]]] = {
    "a bilinear upsampling": ((1, 4, 5, 24), (24, 1, 4, 4), "f32", {"strides": 2, "padding": 1, "groups": 24}),
    "two outputs, dilation": ((1, 4, 5, 24), (24, 2, 3, 3), "bf16", {"strides": 2, "groups": 24, "dilation": 2}),
    "channels second, more taps than are unrolled": (
        (1, 20, 5, 5), (20, 1, 7, 5), "f16", {"strides": 3, "groups": 20, "channels_last": False}
    ),
    "one dim, tails": ((2, 7, 5), (5, 1, 3), "f32", {"strides": 2, "groups": 5, "output_padding": 1}),
}  # fmt: skip
ALSO_BEFORE_HOPPER = ["phases of one tap and of two", "phases without a tap", "groups", "f32"]


@pytest.mark.variants("level")
@pytest.mark.parametrize(
    ("name", "level"), [*((name, "sm_90") for name in CASES), *((name, "sm_80") for name in ALSO_BEFORE_HOPPER)]
)
def test_matches_the_reference(name: str, level: str) -> None:
    shape, taps, element, options = CASES[name]
    plan = hold(
        transposed(shape, taps, element, **options), "conv_transpose", [[size or 0 for size in shape], taps], level
    )
    (launch,) = plan.function.launches
    assert launch.flops == 2 * math.prod(size or 0 for size in shape) * math.prod(taps[1:])
    assert launch.read and launch.written and launch.product is not None


@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("name", DEPTHWISE)
def test_groups_of_one_channel(name: str, weight: bool) -> None:
    shape, taps, element, options = DEPTHWISE[name]
    view = transposed(shape, taps, element, weight=weight, **options)
    hold(view, "depthwise_transpose", [[size or 0 for size in shape], taps])


@pytest.mark.parametrize("name", ["two steps in each tap", "groups", "channels second"])
def test_a_filter_that_is_no_weight_is_read_where_it_lies(name: str) -> None:
    shape, taps, element, options = CASES[name]
    view = transposed(shape, taps, element, weight=False, **options)
    assert not planned(view).packings
    hold(view, "conv_transpose", [[size or 0 for size in shape], taps])


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_an_open_batch(batch: int) -> None:
    view = transposed((None, 4, 5, 16), (16, 24, 3, 3), strides=2, padding=1)
    hold(view, "conv_transpose", [(batch, 4, 5, 16), (16, 24, 3, 3)])


@pytest.mark.parametrize("sizes", [(1, 4), (6, 5)])
@pytest.mark.parametrize("groups", [1, 24])
def test_open_images(sizes: tuple[int, int], groups: int) -> None:
    taps = (24, 24 // groups, 3, 3)
    view = transposed((2, None, None, 24), taps, strides=2, padding=1, groups=groups)
    hold(view, "depthwise_transpose" if groups > 1 else "conv_transpose", [(2, *sizes, 24), taps], "sm_80")


def test_a_filter_is_packed_once_for_all_levels() -> None:
    view = transposed((1, 6, 7, 24), (24, 6, 3, 3), groups=3)
    layouts = {level: planned(view, level).layouts() for level in ("sm_80", "sm_90", "sm_100")}
    packing = Packing.of(INPUTS_TAPS_CHANNELS, groups=3)
    assert all(each == {1: packing} for each in layouts.values())
    array = random((6, 5, 2, 4), "f32")
    packed = packing.apply(array)
    assert packed.shape == packing.packed_shape(array.shape) == (15, 2, 4, 2)
    assert packed[5 + 3, 1, 2, 1] == array[2 + 1, 3, 1, 2]
    spread = INPUTS_TAPS_OUTPUTS.apply(array)
    assert spread.shape == INPUTS_TAPS_OUTPUTS.packed_shape(array.shape) == (2, 4, 30)
    assert spread[1, 2, 5 + 3] == array[1, 3, 1, 2]


BLOCK = """
#all = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#channel = affine_map<(d0, d1, d2, d3) -> (d3)>
func.func @region(%x: tensor<{n}x{s}x{s}x{c}xbf16>, %w: tensor<{c}x{o}x{k}x{k}xbf16>, %bias: tensor<{o}xbf16>,
                  %y: tensor<{n}x{r}x{r}x{o}xbf16>) -> tensor<{n}x{r}x{r}x{o}xbf16> {{
  %zero = arith.constant 0.0 : bf16
  %0 = "lk.conv_transpose"(%x, %w) {{accumulate = f32, channels_last = true, dilation = array<i64: 1, 1>,
      groups = 1 : i64, output_padding = array<i64: 0, 0>, padding = array<i64: {p}, {p}, {p}, {p}>,
      strides = array<i64: 2, 2>}}
      : (tensor<{n}x{s}x{s}x{c}xbf16>, tensor<{c}x{o}x{k}x{k}xbf16>) -> tensor<{n}x{r}x{r}x{o}xbf16>
  %1 = tensor.empty() : tensor<{n}x{r}x{r}x{o}xbf16>
  %2 = linalg.generic {{indexing_maps = [#all, #channel, #all, #all],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
      ins(%0, %bias, %y : tensor<{n}x{r}x{r}x{o}xbf16>, tensor<{o}xbf16>, tensor<{n}x{r}x{r}x{o}xbf16>)
      outs(%1 : tensor<{n}x{r}x{r}x{o}xbf16>) {{
  ^bb0(%a: bf16, %b: bf16, %c: bf16, %out: bf16):
    %3 = arith.addf %a, %b : bf16
    %4 = arith.addf %3, %c : bf16
    %5 = arith.maximumf %4, %zero : bf16
    linalg.yield %5 : bf16
  }} -> tensor<{n}x{r}x{r}x{o}xbf16>
  return %2 : tensor<{n}x{r}x{r}x{o}xbf16>
}}
"""
"""A bias, a sum with another image and a relu behind a transposed convolution with strides of 2."""


def block(n: int, s: int, c: int, o: int, k: int) -> tuple[RegionView, list[Sequence[int]]]:
    """The region of :data:`BLOCK` and the shapes of its operands; the result is of ``2 * s`` where ``k`` is even."""
    pad = max(0, k // 2 - 1)
    r = (s - 1) * 2 - 2 * pad + k
    text = BLOCK.format(n=n, s=s, c=c, o=o, k=k, p=pad, r=r)
    view = RegionView.from_text(text, "conv_transpose", ["", "w", "b", ""])
    return view, [(n, s, s, c), (c, o, k, k), (o,), (n, r, r, o)]


@pytest.mark.parametrize("sizes", [(2, 3, 24, 40, 2), (1, 4, 16, 24, 3), (1, 4, 16, 24, 4)])
def test_epilogues(sizes: tuple[int, int, int, int, int]) -> None:
    view, shapes = block(*sizes)
    hold(view, "conv_transpose", shapes)


@pytest.mark.parametrize(
    ("view", "family", "reason"),
    [
        (transposed((1, 5, 5, 4), (4, 4, 3, 3), "f64"), TransposedFamily(), "elements of f64"),
        (transposed((1, 5, 5, 4), (4, 1, 3, 3), groups=4), TransposedFamily(), "no channels are summed"),
        (transposed((1, 5, 5, 4), (4, 4, 3, 3)), TransposedDepthwiseFamily(), "channels are summed"),
        (transposed((0, 5, 5, 4), (4, 4, 3, 3)), TransposedFamily(), "nothing to compute"),
    ],
)
def test_refusals(view: RegionView, family: KernelFamily, reason: str) -> None:
    answer = family.plan(view, "sm_90")
    assert isinstance(answer, Refusal)
    assert reason in answer.reason


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(
    "view",
    [
        block(8, 32, 1024, 512, 2)[0],
        block(8, 64, 256, 128, 4)[0],
        block(8, 64, 128, 64, 3)[0],
        transposed((1, 1024, 512), (512, 256, 16), "f32", strides=8, padding=4),
        transposed((1, 64, 64, 256), (256, 1, 4, 4), strides=2, padding=1, groups=256),
    ],
    ids=["2x2", "4x4", "3x3", "one dim", "depthwise"],
)
def test_nothing_is_spilled_at_full_size(view: RegionView, level: str) -> None:
    if ptxas.find_ptxas() is None:
        pytest.skip("there is no ptxas")
    (variant,) = unpack(compile_cuda(view, level, fast=True).code, {}).variants
    for name, place in variant.kernels.items():
        assert place.kernel.registers > 0, name
        assert place.kernel.spills == 0, name


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((8, 32, 1024, 512, 2), marks=pytest.mark.exhaustive),
        pytest.param((8, 64, 256, 128, 4), marks=pytest.mark.exhaustive),
        (8, 64, 128, 64, 3),
    ],
    ids=["2x2", "4x4", "3x3"],
)
def test_operands_are_loaded_in_whole_vectors(sizes: tuple[int, int, int, int, int]) -> None:
    """Sixteen bytes at once, straight into shared memory."""
    code = unpack(compile_cuda(block(*sizes)[0], "sm_90", fast=True).code, {})
    (variant,) = code.variants
    (name,) = variant.kernels
    copies = [line for line in code.compiled(variant, name).ptx.decode().splitlines() if ".shared.global" in line]
    assert copies and all("cp.async" in line and ", 0x10" in line for line in copies), copies[:2]
