"""Products of matrices by Triton on the simulated device: all types, with and without asynchronous copies."""

from __future__ import annotations

import numpy as np
import pytest
import triton.language as tl

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from tests.kernels.cuda.simulated_triton import matrix_programs as programs
from tests.kernels.cuda.simulated_triton.launching import (
    assert_close,
    compile_kernel,
    run_kernel,
    unwritten,
    values,
)

# Type of the factors and of the result, how f32 is multiplied, and how exact the result is.
PRODUCTS = {
    "bf16": ("bf16", "fp32", tl.float32, "tf32", 1e-5),
    "f16": ("fp16", "fp32", tl.float32, "tf32", 1e-5),
    "f16 in f16": ("fp16", "fp16", tl.float16, "tf32", 2e-2),
    "f32": ("fp32", "fp32", tl.float32, "ieee", 1e-5),
    "tf32": ("fp32", "fp32", tl.float32, "tf32", 5e-3),
    "int8": ("i8", "i32", tl.int32, "tf32", 0.0),
    "e5m2": ("fp8e5", "fp32", tl.float32, "tf32", 1e-5),
    "f64": ("fp64", "fp64", tl.float64, "tf32", 1e-12),
}


def product(name: str, m: int, n: int, k: int, **options: object) -> None:
    kind, result, accumulator, precision, tolerance = PRODUCTS[name]
    a, b = values((m, k), kind, 1), values((k, n), kind, 2)
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "ACCUMULATOR": accumulator, "PRECISION": precision}
    grid = [-(-m // 64), -(-n // 64)]
    arguments = [a, b, unwritten((m, n), result), m, n, k, k, n, n]
    (found,) = run_kernel(programs.matmul, grid, arguments, [2], constants, **options)  # pyright: ignore[reportArgumentType]
    assert_close(found, a.astype(np.float64) @ b.astype(np.float64), tolerance)


@pytest.mark.parametrize("name", PRODUCTS)
def test_product_on_sm_80(name: str) -> None:
    product(name, 96, 80, 112, num_stages=3)


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_product_on_sm_90_without_its_own_instructions(name: str) -> None:
    product(name, 96, 80, 112, num_stages=3, target=90)


@pytest.mark.parametrize("name", ["bf16", "f32", "int8"])
def test_product_of_odd_sizes(name: str) -> None:
    product(name, 67, 33, 51, num_stages=3, aligned=False)


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32"])
def test_product_with_the_second_factor_transposed(kind: str) -> None:
    a, b = values((64, 96), kind, 1), values((64, 96), kind, 2)
    (found,) = run_kernel(
        programs.matmul_transposed,
        [1, 1],
        [a, b, unwritten((64, 64), "fp32"), 64, 96],
        [2],
        {"BLOCK": 64, "BLOCK_K": 32},
        num_stages=3,
    )
    assert_close(found, a.astype(np.float64) @ b.astype(np.float64).T, 5e-3 if kind == "fp32" else 1e-5)


def test_stages_are_asynchronous_copies() -> None:
    """The variant that is told of multiples of 16 has them, and products by the tensor cores."""
    a = values((64, 64), "bf16")
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "ACCUMULATOR": tl.float32, "PRECISION": "tf32"}
    arguments = [a, a, values((64, 64), "fp32"), 64, 64, 64, 64, 64, 64]
    ptx = compile_kernel(programs.matmul, arguments, constants, 80, True, {"num_stages": 3}).ptx
    for text in ("cp.async.cg.shared.global", "cp.async.wait_group", "ldmatrix.sync.aligned", "mma.sync.aligned"):
        assert text in ptx


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_attention(kind: str, causal: bool) -> None:
    heads, length, width = 2, 100, 32
    q, k, v = (values((heads, length, width), kind, seed) for seed in range(3))
    scale = 1 / np.sqrt(width)
    arguments = [q, k, v, unwritten(q.shape, "fp32"), length, float(scale * np.log2(np.e))]
    constants = {"CAUSAL": causal, "BLOCK_M": 64, "BLOCK_N": 32, "WIDTH": width}
    (found,) = run_kernel(programs.attention, [2, heads], arguments, [3], constants, num_stages=3)
    score = np.einsum("hid,hjd->hij", q.astype(np.float64), k.astype(np.float64)) * scale
    if causal:
        score = np.where(np.tri(length, dtype=np.bool_), score, -np.inf)
    power = np.exp(score - score.max(-1, keepdims=True))
    expected = np.einsum("hij,hjd->hid", power / power.sum(-1, keepdims=True), v.astype(np.float64))
    assert_close(found, expected, 2e-2 if kind == "bf16" else 3e-3)


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_convolution(kind: str) -> None:
    batch, height, width, channels, filters = 2, 6, 7, 16, 24
    x, w = values((batch, height, width, channels), kind, 1), values((3, 3, channels, filters), kind, 2)
    arguments = [x, w, unwritten((batch, height, width, filters), "fp32"), batch, height, width, channels, filters]
    constants = {"SIZE": 3, "BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32}
    (found,) = run_kernel(programs.convolution, [2, 1], arguments, [2], constants, num_stages=3)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = np.zeros(found.shape)
    for dy in range(3):
        for dx in range(3):
            expected += padded[:, dy : dy + height, dx : dx + width] @ w[dy, dx].astype(np.float64)
    assert_close(found, expected, 5e-3 if kind == "fp32" else 1e-5)


def test_the_result_is_the_cards_and_not_the_nearest() -> None:
    """Sums that a card cuts differ from sums rounded once, on the same launch; both are near the exact one."""
    a, b = values((64, 128), "fp16", 1), values((128, 64), "fp16", 2)
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "ACCUMULATOR": tl.float32, "PRECISION": "tf32"}
    arguments = [a, b, unwritten((64, 64), "fp32"), 64, 64, 128, 128, 64, 64]
    found = [
        run_kernel(programs.matmul, [1, 1], arguments, [2], constants, gpu=gpu, num_stages=3)[0]
        for gpu in (SimulatedGpu(), SimulatedGpu(tensor_cores="float64"), SimulatedGpu(generation="hopper"))
    ]
    exact = a.astype(np.float64) @ b.astype(np.float64)
    errors = [float(np.abs(each - exact).max()) for each in found]
    assert errors[1] < errors[2] < errors[0] < 1e-4
    assert (np.abs(found[0]) <= np.abs(found[1])).mean() > 0.75, "cut towards zero"
