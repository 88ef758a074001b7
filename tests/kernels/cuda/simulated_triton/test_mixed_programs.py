"""Persistent, split and packed products, scans of pairs, loops by data, by Triton on the simulated device."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from tests.kernels.cuda.simulated_triton import mixed_programs as programs
from tests.kernels.cuda.simulated_triton.launching import (
    DTYPES,
    TARGETS,
    assert_close,
    compile_kernel,
    launch,
    run_kernel,
    unwritten,
    values,
)


@pytest.mark.parametrize(("warps", "stages"), [(1, 1), (2, 2), (4, 3), (8, 4)])
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_persistent_product(kind: str, warps: int, stages: int) -> None:
    a, b = values((128, 96), kind, 1), values((96, 192), kind, 2)
    (found,) = run_kernel(
        programs.persistent_matmul,
        [3],
        [a, b, unwritten((128, 192), "fp32"), 128, 192, 96],
        [2],
        {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "BLOCKS": 3},
        gpu=SimulatedGpu(refuse_unwritten=True, check_races=True),
        num_warps=warps,
        num_stages=stages,
    )
    assert_close(found, a.astype(np.float64) @ b.astype(np.float64), 1e-5)


@pytest.mark.parametrize("kind", ["fp8e4nv", "fp8e5"])
def test_product_of_eight_bits_on_sm_89(kind: str) -> None:
    """Sums keep 13 bits: far from the exact ones, but no product is at a wrong place."""
    a, b = values((64, 64), kind, 1), values((64, 64), kind, 2)
    arguments = [a, b, unwritten((64, 64), "fp32"), 64, 64, 64]
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "BLOCKS": 1}
    ptx = compile_kernel(programs.persistent_matmul, arguments, constants, 89, True, {}).ptx
    assert f"mma.sync.aligned.m16n8k32.row.col.f32.{'e4m3' if kind == 'fp8e4nv' else 'e5m2'}" in ptx
    exact = a.astype(np.float64) @ b.astype(np.float64)
    (cut,) = run_kernel(programs.persistent_matmul, [1], arguments, [2], constants, target=89)
    assert_close(cut, exact, 4e-3)
    gpu = SimulatedGpu(tensor_cores="float64")
    (near,) = run_kernel(programs.persistent_matmul, [1], arguments, [2], constants, target=89, gpu=gpu)
    assert_close(near, exact, 1e-6)


def test_product_of_four_bits() -> None:
    a, scales = values((32, 128), "bf16", 1), np.abs(values(64, "fp32", 2)) + np.float32(0.5)
    codes = np.random.default_rng(3).integers(0, 16, (128, 64)).astype(np.uint8)
    packed = (codes[::2] | codes[1::2] << 4).astype(np.uint8)
    (found,) = run_kernel(
        programs.four_bit_matmul,
        [2],
        [a, packed, scales, unwritten((32, 64), "fp32"), 64, 128],
        [3],
        {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 64},
        num_stages=3,
    )
    weight = ((codes.astype(np.float32) - 8) * scales).astype(DTYPES["bf16"]).astype(np.float64)
    assert_close(found, a.astype(np.float64) @ weight, 1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_split_product(target: int) -> None:
    a, b = values((64, 128), "fp32", 1), values((128, 64), "fp32", 2)
    (found,) = run_kernel(
        programs.split_matmul,
        [2, 2, 4],
        [a, b, np.zeros((64, 64), np.float32), 64, 128],
        [2],
        {"BLOCK": 32, "BLOCK_K": 16, "PARTS": 4},
        target=target,
        num_warps=2,
    )
    assert_close(found, a.astype(np.float64) @ b.astype(np.float64), 5e-3)


def test_scans_of_pairs() -> None:
    x = values(256, "fp32")
    results = [unwritten(257, "fp32"), unwritten(257, "i32")]
    largest, places = run_kernel(programs.largest_with_places, [1], [x, *results], [1, 2], {"N": 256})
    expected = [int(np.argmax(x[: end + 1])) for end in range(256)]
    assert places.tolist() == [*expected, int(np.argmax(x))]
    assert (largest == x[places]).all()


def test_shuffles_of_values() -> None:
    x, y = values(64, "fp32", 1), values(64, "fp32", 2)
    results = [unwritten(128, "fp32"), unwritten(64, "fp32")]
    product, difference = run_kernel(programs.shuffled, [1], [x, y, *results], [2, 3], {"N": 64})
    both = np.stack([x, y], -1).reshape(-1)[::-1]
    np.testing.assert_allclose(product, np.cumprod(both.astype(np.float64)), rtol=1e-5, atol=1e-44)
    assert (difference == both[::2] - both[1::2]).all()


def test_loops_of_different_lengths() -> None:
    def steps(value: int) -> int:
        return 0 if value <= 1 else 1 + steps(value // 2 if value % 2 == 0 else 3 * value + 1)

    x = np.arange(1, 30, dtype=np.int32)
    (found,) = run_kernel(programs.steps_to_one, [29], [x, unwritten(29, "i32")], [1], num_warps=1)
    assert found.tolist() == [steps(int(value)) for value in x]


@pytest.mark.parametrize("target", TARGETS)
def test_clamp(target: int) -> None:
    x = values(256, "fp32")
    (found,) = run_kernel(programs.clamped, [1], [x, unwritten(256, "fp32")], [1], {"N": 256}, target=target)
    assert (found == np.clip(x, -0.5, 0.5)).all()


def test_atomics_of_64_bits() -> None:
    x = np.random.default_rng(0).integers(-(1 << 60), 1 << 60, 128) // 256
    start = np.array([7, -(1 << 62), 1 << 62], np.int64)
    (found,) = run_kernel(programs.wide_atomics, [1], [x, start], [1], {"N": 128})
    assert found.tolist() == [7 + int(x.sum()), int(x.max()), int(x.min())]


@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
def test_vectors_of_atomics(kind: str) -> None:
    x, start = values(1000, "i32").astype(DTYPES[kind]), values(1024, "i32", 1).astype(DTYPES[kind])
    compiled = compile_kernel(programs.contiguous_add, [x, start, 1000], {"BLOCK": 512}, 90, True, {})
    (found,), _ = launch(compiled, SimulatedGpu(), [2], [x, start, 1000], [1])
    expected = start.astype(np.float64)
    expected[:1000] += x.astype(np.float64)
    assert (found.astype(np.float64) == expected).all()
    whole = values(1024, kind)
    assert ".add" in compiled.ptx
    aligned = compile_kernel(programs.contiguous_add, [whole, whole, 1024], {"BLOCK": 1024}, 90, True, {})
    assert (".v4.f32" if kind == "fp32" else ".v8.") in aligned.ptx
    (found,), _ = launch(aligned, SimulatedGpu(), [1], [whole, np.zeros_like(whole), 1024], [1])
    assert (found == whole).all()


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_batched_product(kind: str) -> None:
    x, y = values((2, 32, 32), kind, 1), values((2, 32, 32), kind, 2)
    arguments = [x, y, unwritten(x.shape, "fp32")]
    (found,) = run_kernel(programs.batched_matmul, [1], arguments, [2], {"BATCH": 2, "N": 32})
    assert_close(found, x.astype(np.float64) @ y.astype(np.float64), 5e-3 if kind == "fp32" else 1e-5)
