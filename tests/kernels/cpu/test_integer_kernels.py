"""Integer products: every kernel, at every CPU level, gives the bits of the int64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.dialect.reference.quantize import ROUNDINGS
from lowerkit.passes.base import PassContext
from lowerkit.passes.registry import parse_pipeline
from lowerkit.program.weights import WeightStore
from lowerkit.targets.cpu.conv.conv import ConvFamily
from lowerkit.targets.cpu.conv.depthwise import DepthwiseFamily
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.gemm.integer_matmul import IntegerMatmulFamily
from lowerkit.targets.cpu.generic.generic import GenericFamily
from lowerkit.targets.cpu.levels import cpu_features, runs_on_host
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.kernels import LEVELS, run_plan
from tests.support.suite.randomness import RANDOM

Array = np.ndarray[Any, Any]
REQUANT = (
    'axis = {axis} : i64, rounding = "{rounding}", mult_bits = {bits} : i64, minimum = {low} : i64,'
    " maximum = {high} : i64, unsigned_input = false, unsigned = {unsigned}, storage = i8"
)


def shaped(shape: Sequence[int], element: str = "i8") -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>"


@dataclass(frozen=True)
class Problem:
    """An integer product with a requantization per channel and, where asked for, what comes before it."""

    anchor: str
    operands: tuple[tuple[int, ...], tuple[int, ...]]
    result: tuple[int, ...]
    channel_axis: int
    rounding: str = "half_even"
    mult_bits: int = 32
    unsigned_result: bool = True
    bare: bool = False

    @property
    def channels(self) -> int:
        return self.result[self.channel_axis]

    def text(self) -> str:
        data, weight = (shaped(shape) for shape in self.operands)
        sums, stored, vector = shaped(self.result, "i32"), shaped(self.result), shaped((self.channels,), "i32")
        head = f"%r = {self.anchor} : ({data}, {weight}) -> {sums}"
        if self.bare:
            return f"func.func @region(%a: {data}, %w: {weight}) -> {sums} {{\n{head}\nreturn %r : {sums}\n}}"
        low, high = (0, 255) if self.unsigned_result else (-128, 127)
        attributes = REQUANT.format(
            axis=self.channel_axis, rounding=self.rounding, bits=self.mult_bits, low=low, high=high,
            unsigned=str(self.unsigned_result).lower(),
        )  # fmt: skip
        return (
            f"func.func @region(%a: {data}, %w: {weight}, %m: {vector}, %s: {vector}, %z: {vector}) -> {stored} {{\n"
            f"{head}\n"
            f'%q = "lk.requant"(%r, %m, %s, %z) {{{attributes}}} : ({sums}, {vector}, {vector}, {vector}) -> {stored}\n'
            f"return %q : {stored}\n}}"
        )

    def arrays(self, random: np.random.Generator) -> list[Array]:
        products = [random.integers(-128, 128, shape).astype(np.int8) for shape in self.operands]
        if self.bare:
            return products
        # Sums of random products are some thousands: these factors bring them to the range of a byte and beyond.
        top = self.mult_bits - 1
        multiplier = random.integers(1 << (top - 1), 1 << top, self.channels).astype(np.int32)
        shift = random.integers(top + 5, top + 11, self.channels).astype(np.int32)
        multiplier[0], shift[0] = 1 << (top - 1), top + 7  # a power of two has ties
        return [*products, multiplier, shift, random.integers(0, 100, self.channels).astype(np.int32)]

    def check(self, family: KernelFamily, level: str, ranges: int) -> None:
        random = RANDOM
        module = parse_module(self.text(), new_context())
        arrays = self.arrays(random)
        (expected,) = interpret(module, arrays, function="region")
        for one_pass in parse_pipeline("lower-quantization,simplify-elementwise,fuse-elementwise"):
            one_pass.run(module, PassContext(weights=WeightStore()))
        names = ["", "w", "m", "s", "z"][: len(arrays)]
        view = RegionView.from_text(str(module), "test", names)
        plan = family.plan(view, cpu_features(level))
        assert isinstance(plan, DeviceCode), plan
        element = "i32" if self.bare else "i8"
        (found,) = run_plan(plan, arrays, [(self.result, element)], level, ranges=ranges)
        np.testing.assert_array_equal(found, expected)
        assert np.unique(expected).size > 2, "a constant result proves nothing"


def matmul(
    rows: tuple[int, ...], depth: int, columns: int, *, transposed: bool = False, unsigned: bool = True, **fields: Any
) -> Problem:
    anchor = (
        f'"lk.integer_matmul"(%a, %w) {{transpose_rhs = {str(transposed).lower()}, unsigned = {str(unsigned).lower()}}}'
    )
    weight = (columns, depth) if transposed else (depth, columns)
    return Problem(anchor, ((*rows, depth), weight), (*rows, columns), len(rows), **fields)


def conv(
    image: tuple[int, ...],
    filters: tuple[int, ...],
    *,
    stride: int = 1,
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: int = 1,
    groups: int = 1,
    value: int = 0,
    **fields: Any,
) -> Problem:
    batch, height, width, _ = image
    outputs, _, *kernel = filters
    sizes = [
        (size + padding[2 * axis] + padding[2 * axis + 1] - dilation * (kernel[axis] - 1) - 1) // stride + 1
        for axis, size in enumerate((height, width))
    ]
    anchor = (
        f'"lk.integer_conv"(%a, %w) {{channels_last = true, strides = array<i64: {stride}, {stride}>, padding = '
        f"array<i64: {', '.join(map(str, padding))}>, dilation = array<i64: {dilation}, {dilation}>, "
        f"groups = {groups} : i64, padding_value = {value} : i64, unsigned = true}}"
    )
    return Problem(anchor, (image, filters), (batch, *sizes, outputs), 3, **fields)


MATMULS = {
    "small": matmul((3,), 4, 5),
    "exact in f64": matmul((9,), 128, 70, mult_bits=25),
    "bare": matmul((13,), 64, 33, bare=True),
    "odd": matmul((7,), 68, 47, rounding="single"),
    "transposed": matmul((29,), 96, 64, transposed=True, rounding="half_away"),
    "batches": matmul((2, 3, 5), 32, 16, unsigned_result=False, rounding="double"),
    "in f32": matmul((9,), 128, 70, mult_bits=25, rounding="float32"),
    "one row": matmul((1,), 256, 130, rounding="floor"),
    "several blocks": matmul((130,), 772, 96),
}
CONVS = {
    "in f32": conv((1, 6, 7, 16), (33, 16, 3, 3), padding=(1, 1, 1, 1), value=3, mult_bits=25, rounding="float32"),
    "exact in f64": conv((1, 6, 7, 16), (33, 16, 3, 3), padding=(1, 1, 1, 1), value=3, mult_bits=25),
    "pointwise": conv((2, 7, 5, 32), (24, 32, 1, 1)),
    "padded": conv((1, 9, 8, 16), (40, 16, 3, 3), padding=(1, 1, 1, 1), value=131),
    "strided": conv((2, 11, 13, 4), (16, 4, 7, 7), padding=(3, 2, 3, 3), stride=2, value=255, rounding="single"),
    "grouped": conv((1, 6, 6, 16), (24, 8, 3, 3), groups=2, padding=(0, 1, 1, 0), value=7, unsigned_result=False),
    "dilated": conv((1, 10, 9, 8), (17, 8, 3, 3), dilation=2, bare=True),
    "pointwise strided": conv((1, 9, 9, 12), (32, 12, 1, 1), stride=2),
}


def depthwise(image: tuple[int, ...], kernel: tuple[int, int], **fields: Any) -> Problem:
    return conv(image, (image[-1], 1, *kernel), groups=image[-1], **fields)


DEPTHWISE = {
    "in f32": depthwise((1, 6, 9, 24), (3, 3), padding=(1, 1, 1, 1), value=5, mult_bits=25, rounding="float32"),
    "padded with zero": depthwise((2, 7, 9, 40), (3, 3), padding=(1, 1, 1, 1)),
    "padded with 255": depthwise((1, 5, 8, 32), (3, 3), padding=(1, 1, 1, 1), value=255, bare=True),
    "strided": depthwise((1, 11, 6, 17), (5, 3), stride=2, padding=(2, 2, 1, 0), value=129, mult_bits=25),
    "inside": depthwise((1, 8, 7, 64), (3, 2), value=77, rounding="floor"),
    "dilated": depthwise((1, 9, 30, 3), (3, 3), dilation=2, padding=(2, 1, 3, 2), value=3, unsigned_result=False),
    "wider than the image": depthwise((1, 2, 3, 16), (5, 5), padding=(2, 2, 2, 2), value=200, bare=True),
}


@pytest.mark.every_combination  # instructions, layout of the weight and epilogue are those of the level
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(name: str, level: str) -> None:
    DEPTHWISE[name].check(DepthwiseFamily(), level, 3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", [0, 255])
def test_the_largest_depthwise_sums(level: str, value: int) -> None:
    problem = depthwise((1, 6, 5, 24), (3, 3), padding=(1, 1, 1, 1), value=value, bare=True)
    view = RegionView.from_text(problem.text(), "test", ["", "w"])
    plan = DepthwiseFamily().plan(view, cpu_features(level))
    assert isinstance(plan, DeviceCode)
    for weight in (-128, 127):
        arrays = [np.full(problem.operands[0], -1, np.int8), np.full(problem.operands[1], weight, np.int8)]
        (sums,) = run_plan(plan, arrays, [(problem.result, "i32")], level)
        assert (sums[0, 1:-1, 1:-1] == 9 * 255 * weight).all()
        assert (sums[0, 0, 0] == (4 * 255 + 5 * value) * weight).all()


@pytest.mark.every_combination  # instructions, layout of the weight and epilogue are those of the level
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MATMULS)
def test_matmul(name: str, level: str) -> None:
    MATMULS[name].check(IntegerMatmulFamily(), level, 3)


@pytest.mark.every_combination  # instructions, layout of the weight and epilogue are those of the level
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CONVS)
def test_conv(name: str, level: str) -> None:
    CONVS[name].check(ConvFamily(), level, 3)


@pytest.mark.parametrize("problem", [MATMULS["odd"], CONVS["padded"], matmul((3,), 6, 5, unsigned=False)])
def test_plain_loops_give_the_same_bits(problem: Problem) -> None:
    problem.check(GenericFamily(), "x86-64-v3", 1)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_rounding(rounding: str) -> None:
    matmul((16,), 64, 32, rounding=rounding).check(IntegerMatmulFamily(), "x86-64-v3", 1)


def test_sums_do_not_saturate_on_the_way() -> None:
    """The largest products of all: ``vpmaddubsw`` would stop at 32767."""
    for level in ("x86-64-v3", "x86-64-v4", "znver4"):
        if not runs_on_host(level):
            continue
        problem = matmul((2,), 512, 16, bare=True)
        view = RegionView.from_text(problem.text(), "test", ["", "w"])
        plan = IntegerMatmulFamily().plan(view, cpu_features(level))
        assert isinstance(plan, DeviceCode)
        for weight in (-128, 127):
            arrays = [np.full((2, 512), -1, np.int8), np.full((512, 16), weight, np.int8)]
            (sums,) = run_plan(plan, arrays, [((2, 16), "i32")], level)
            assert (sums == 512 * 255 * weight).all()


@pytest.mark.parametrize(
    ("problem", "family", "weight", "reason"),
    [
        (matmul((3,), 8, 4, unsigned=False), IntegerMatmulFamily(), "w", "left operand is signed"),
        (matmul((3,), 6, 4), IntegerMatmulFamily(), "w", "K = 6 is no multiple of four bytes"),
        (matmul((3,), 8, 4), IntegerMatmulFamily(), "", "right operand is not a weight"),
        (conv((1, 5, 5, 6), (4, 6, 3, 3)), ConvFamily(), "w", "no multiple of four bytes"),
        (conv((1, 5, 5, 8), (4, 8, 3, 3)), ConvFamily(), "", "filter is not a weight"),
        (conv((1, 5, 5, 8), (8, 4, 3, 3), groups=2), DepthwiseFamily(), "w", "not depthwise"),
        (depthwise((1, 5, 90, 8), (1, 65)), DepthwiseFamily(), "w", "would be unrolled"),
    ],
)
def test_refusals(problem: Problem, family: KernelFamily, weight: str, reason: str) -> None:
    text = Problem(problem.anchor, problem.operands, problem.result, problem.channel_axis, bare=True).text()
    answer = family.plan(RegionView.from_text(text, "test", ["", weight]), cpu_features("x86-64-v3"))
    assert isinstance(answer, Refusal)
    assert reason in answer.reason
