"""Kernels of AMX and of pairs of bf16 through the model of their instructions, which is held to the machine's own."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from lowerkit.targets.cpu.conv.conv import ConvFamily
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.gemm.arithmetic import dot_pairs
from lowerkit.targets.cpu.gemm.matmul import MatmulFamily
from lowerkit.targets.cpu.levels import runs_on_host
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.cpu.text.kernel_text import Buffer, KernelText
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import DeviceCode
from tests.support.cpu.tile_model import modelled
from tests.support.kernels import Array, Epilogue, load_kernel, plan_region, random_array, region_text, tensor

pytestmark = pytest.mark.skipif(not runs_on_host("x86-64-v4"), reason="this machine is below x86-64-v4")

BF16 = ml_dtypes.bfloat16
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**-126, 2.0**-127, -(2.0**-133), 3.0e38, -3.0e38, 2.0**-64]


def same_bits(left: Array, right: Array) -> bool:
    """Equal bytes, where any NaN is as good as another."""
    both = np.isnan(left.astype(np.float32)) & np.isnan(right.astype(np.float32))
    return bool((both | (left.view(f"u{left.itemsize}") == right.view(f"u{right.itemsize}"))).all())


def dot_kernel() -> DeviceCode:
    """One ``vdpbf16ps``: buffers are 32 bf16, 32 bf16, 16 f32, and 16 f32 for the result."""
    text = KernelText()
    for number in range(4):
        text.lines.append(abi.load_pointer(f"pointer{number}", number).rstrip("\n"))
    words = [text.read(Buffer(Value(f"%pointer{number}", "!llvm.ptr"), "i32"), 0, 16) for number in range(2)]
    sums = text.read(Buffer(Value("%pointer2", "!llvm.ptr"), "f32"), 0, 16)
    text.write(dot_pairs(text, words[0], words[1], sums), Buffer(Value("%pointer3", "!llvm.ptr"), "f32"), 0)
    return DeviceCode("dot", abi.kernel_module(text.text()))


def dot_by_fractions(a: Array, b: Array, sums: Array) -> Array:
    """The instruction in exact arithmetic for finite normal numbers: the odd product first, a rounding each."""
    out = np.empty(16, np.float32)
    for lane in range(16):
        total = Fraction(float(sums[lane]))
        for half in (1, 0):
            product = Fraction(float(a[2 * lane + half])) * Fraction(float(b[2 * lane + half]))
            total = Fraction(float(nearest_f32(total + product)))
        out[lane] = nearest_f32(total)
    return out


def nearest_f32(value: Fraction) -> np.float32:
    """To nearest even, without the second rounding that a way through float64 has."""
    near = np.float32(float(value))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.uint32)) & 1))


def dot(model: bool, a: Array, b: Array, sums: Array) -> Array:
    out = np.zeros(16, np.float32)
    call, _ = load_kernel(dot_kernel(), "znver4", model).bind([a, b, sums, out])
    call(0, 1)
    return out


def test_a_dot_product_of_pairs_adds_the_odd_product_first_and_rounds_twice() -> None:
    generator = np.random.default_rng(7)
    for _ in range(20):
        scale = 2.0 ** generator.integers(-8, 9, 32)
        a = (generator.standard_normal(32) * scale).astype(BF16)
        b = generator.standard_normal(32).astype(BF16)
        sums = (generator.standard_normal(16) * 64).astype(np.float32)
        assert same_bits(dot(True, a, b, sums), dot_by_fractions(a, b, sums))


@pytest.mark.skipif(not runs_on_host("znver4"), reason="this machine has no AVX512_BF16")
def test_the_model_of_a_dot_product_is_the_instruction_bit_for_bit() -> None:
    generator = np.random.default_rng(8)
    special = np.array(SPECIAL, np.float32)
    for _ in range(60):
        a, b = (generator.standard_normal(32).astype(np.float32) * 2.0 ** generator.integers(-70, 60) for _ in range(2))
        sums = generator.standard_normal(16).astype(np.float32) * np.float32(2.0 ** generator.integers(-126, 100))
        for array in (a, b, sums):
            places = generator.random(array.shape) < 0.2
            array[places] = generator.choice(special, places.sum())
        narrow_a, narrow_b = a.astype(BF16), b.astype(BF16)
        assert same_bits(dot(True, narrow_a, narrow_b, sums), dot(False, narrow_a, narrow_b, sums))


MATMULS = {
    "whole tiles": ((32, 64), (64, 64), False),
    "edges": ((75, 96), (70, 96), True),
    "one step": ((5, 32), (32, 16), False),
}
CONVS = {"padded": ((1, 9, 8, 32), (40, 32, 3, 3), 1), "strided": ((1, 11, 12, 32), (16, 32, 3, 3), 2)}


def matmul_text(lhs: tuple[int, ...], rhs: tuple[int, ...], transposed: bool) -> tuple[str, tuple[int, ...]]:
    result = (lhs[0], rhs[0] if transposed else rhs[1])
    anchor = (
        f'"lk.matmul"(%arg0, %arg1) {{transpose_lhs = false, transpose_rhs = {str(transposed).lower()}, '
        "accumulate = f32}"
    )
    return anchor, result


def conv_text(image: tuple[int, ...], filter_: tuple[int, ...], stride: int) -> tuple[str, tuple[int, ...]]:
    height, width = ((size + 2 - 3) // stride + 1 for size in image[1:3])
    anchor = (
        f'"lk.conv"(%arg0, %arg1) {{channels_last = true, strides = array<i64: {stride}, {stride}>, '
        "padding = array<i64: 1, 1, 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, accumulate = f32}"
    )
    return anchor, (1, height, width, filter_[0])


def run(family: KernelFamily, anchor: str, shapes: list[tuple[int, ...]], level: str, model: bool) -> Array:
    """The result of a region of two operands, the second a weight."""
    operands = [tensor(shape, "bf16") for shape in shapes[:2]]
    plan = plan_region(family, region_text(anchor, operands, shapes[2], "bf16", Epilogue()), "anchor", ["", "w"], level)
    assert isinstance(plan, DeviceCode), plan
    generator = np.random.default_rng(3)
    x, w = (random_array(generator, shape, "bf16") for shape in shapes[:2])
    out = np.zeros(shapes[2], BF16)
    call, tasks = load_kernel(plan, level, model).bind([x, plan.packings[1].apply(w), out])
    call(0, tasks)
    return out


@pytest.mark.parametrize("level", ["znver4", "sapphirerapids"])
@pytest.mark.parametrize("name", [*MATMULS, *CONVS])
def test_kernels_give_the_bits_of_the_machine(name: str, level: str) -> None:
    """Where the machine has the instructions; everywhere the model is held to f32 arithmetic."""
    if name in MATMULS:
        lhs, rhs, transposed = MATMULS[name]
        family: KernelFamily = MatmulFamily()
        anchor, result = matmul_text(lhs, rhs, transposed)
        shapes = [lhs, rhs, result]
    else:
        image, filter_, stride = CONVS[name]
        family = ConvFamily()
        anchor, result = conv_text(image, filter_, stride)
        shapes = [image, filter_, result]
    ours = run(family, anchor, shapes, level, model=True)
    if runs_on_host(level):
        assert same_bits(ours, run(family, anchor, shapes, level, model=False))
    plain = run(family, anchor, shapes, "x86-64-v4", model=False)
    scale = np.abs(plain.astype(np.float32)).max()
    assert np.abs(ours.astype(np.float32) - plain.astype(np.float32)).max() <= 2.0**-8 * scale


def test_amx_kernels_are_made_of_tiles() -> None:
    lhs, rhs, transposed = MATMULS["whole tiles"]
    anchor, result = matmul_text(lhs, rhs, transposed)
    text = region_text(anchor, [tensor(shape, "bf16") for shape in (lhs, rhs)], result, "bf16", Epilogue())
    plan = plan_region(MatmulFamily(), text, "matmul", ["", "w"], "sapphirerapids")
    assert isinstance(plan, DeviceCode)
    assert "llvm.x86.tdpbf16ps.internal" in plan.text
    assert "llvm.x86" not in modelled(plan.text)
