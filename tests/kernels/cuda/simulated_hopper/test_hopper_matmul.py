"""Matrix products by wgmma, for every type that Triton compiles, against numpy in f64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import triton.language as tl

from lowerkit.runtimes.cuda.simulated.ordering_lint import check
from tests.kernels.cuda.simulated_hopper.products import TYPES, compile_attention, compile_matmul, run_matmul
from tests.kernels.cuda.simulated_hopper.running import run_hopper
from tests.kernels.cuda.simulated_triton.launching import assert_close, values

_PRODUCTS = {
    "bf16": "k16.f32.bf16.bf16", "fp16": "k16.f32.f16.f16", "i8": "k32.s32.s8.s8", "fp8e4nv": "k32.f32.e4m3.e4m3",
    "fp8e5": "k32.f32.e5m2.e5m2", "fp32": "k8.f32.tf32.tf32",
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_matmul(dtype: str) -> None:
    block = (64, 64, TYPES[dtype][3])
    kernel = compile_matmul(dtype, block)
    assert f"wgmma.mma_async.sync.aligned.m64n64{_PRODUCTS[dtype]}" in kernel.ptx
    found, expected = run_matmul(kernel, dtype, (100, 130, 208), block)
    assert_close(found, expected, TYPES[dtype][2])


@pytest.mark.parametrize("k", [16, 64, 80, 192])
def test_few_trips(k: int) -> None:
    """Fewer trips of the loop than stages, and a last one that is not whole."""
    found, expected = run_matmul(compile_matmul("bf16"), "bf16", (65, 63, k), (64, 64, 64))
    assert_close(found, expected, 2**-8)


@pytest.mark.parametrize(
    ("block", "warps", "aligned"),
    [
        ((128, 128, 64), 8, True),
        ((128, 256, 64), 8, True),
        ((64, 32, 32), 4, True),
        ((64, 16, 16), 4, True),
        ((64, 64, 64), 4, False),
    ],
)
def test_blocks_and_swizzles(block: tuple[int, int, int], warps: int, aligned: bool) -> None:
    """Rows of 128, 64 and 32 bytes in shared memory, two warpgroups, and copies without alignment."""
    kernel = compile_matmul("bf16", block, warps=warps, aligned=aligned)
    found, expected = run_matmul(kernel, "bf16", (150, 270, 96), block)
    assert_close(found, expected, 2**-8)


def test_attention_with_a_factor_in_registers() -> None:
    length, width = 100, 64
    kernel = compile_attention()
    assert re.search(r"wgmma\.mma_async\S+ \{[^}]*\}, \{", kernel.ptx)
    q, k, v = (values((length, width), "bf16", seed) for seed in range(3))
    out = np.zeros((length, width), np.float32)
    arguments: list[Any] = [q, k, v, out, length, 0.125 * np.log2(np.e)]
    found = run_hopper(kernel, (2, 1), arguments, result=3)
    scores = q.astype(np.float64) @ k.astype(np.float64).T * 0.125
    scores[np.triu_indices(length, 1)] = -np.inf
    weights = np.exp(scores - scores.max(1, keepdims=True))
    assert_close(found, weights @ v.astype(np.float64) / weights.sum(1, keepdims=True), 2**-7)


def test_halves_as_accumulator_are_read_before_the_wait() -> None:
    """Triton takes the accumulator apart before it waits, ptxas says that it puts a wait in: with one, all is right."""
    kernel = compile_matmul("fp16", accumulator=tl.float16)
    assert "m64n64k16.f16.f16.f16" in kernel.ptx
    findings = check(kernel.ptx)
    assert {finding.rule for finding in findings} == {"product_registers"}
    assert "wgmma.wait_group is missing before its registers are used" in str(findings[0])
    found, expected = run_matmul(kernel, "fp16", (64, 64, 64), (64, 64, 64))
    assert np.abs(found.astype(np.float64) - expected).max() > 1
    commit = "wgmma.commit_group.sync.aligned;"
    waits = kernel.ptx.replace(commit, f"{commit} wgmma.wait_group.sync.aligned 0;")
    assert check(waits) == []
    found, expected = run_matmul(kernel, "fp16", (100, 130, 208), (64, 64, 64), ptx=waits)
    assert_close(found, expected, 2**-6)
