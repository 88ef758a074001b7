"""Products and attention that Triton compiles to tcgen05, for every type and form, against numpy in f64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated.ordering_lint import check
from tests.kernels.cuda.simulated_hopper.described import FORMS, compile_form, run_form
from tests.kernels.cuda.simulated_hopper.products import TYPES, compile_attention, compile_matmul, run_matmul
from tests.kernels.cuda.simulated_hopper.running import HopperKernel, lines_of, run_hopper, without
from tests.kernels.cuda.simulated_triton.launching import assert_close, values

KINDS = {"bf16": "f16", "fp16": "f16", "i8": "i8", "fp8e4nv": "f8f6f4", "fp8e5": "f8f6f4", "fp32": "tf32"}


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("dtype", TYPES)
def test_matmul(dtype: str, rows: int) -> None:
    block = (rows, 64, TYPES[dtype][3])
    kernel = compile_matmul(dtype, block, sm=100)
    assert f"tcgen05.mma.cta_group::1.kind::{KINDS[dtype]}" in kernel.ptx
    assert ("16x32bx2" if rows == 64 else "32x32b") in kernel.ptx
    found, expected = run_matmul(kernel, dtype, (100, 130, 208), block)
    assert_close(found, expected, TYPES[dtype][2])


@pytest.mark.parametrize(
    ("block", "warps", "aligned", "k"),
    [
        ((128, 256, 64), 8, True, 96),
        ((64, 32, 32), 4, True, 16),
        ((128, 64, 16), 4, True, 80),
        ((64, 64, 64), 4, False, 40),
    ],
)
def test_blocks_and_swizzles(block: tuple[int, int, int], warps: int, aligned: bool, k: int) -> None:
    """Rows of 128, 64 and 32 bytes in shared memory, eight warps, copies without alignment, one trip and several."""
    kernel = compile_matmul("bf16", block, warps=warps, aligned=aligned, sm=100)
    assert "tcgen05.mma" in kernel.ptx
    found, expected = run_matmul(kernel, "bf16", (150, 270, k), block)
    assert_close(found, expected, 2**-8)


@pytest.mark.parametrize("form", FORMS)
def test_operands_by_the_tma_unit(form: str) -> None:
    """Persistent blocks, and warps with tasks of their own, too."""
    kernel = compile_form(form, sm=100)
    assert "tcgen05.mma" in kernel.ptx and "cp.async.bulk.tensor" in kernel.ptx
    found, expected = run_form(form, kernel)
    assert_close(found, expected, 2**-8)
    assert [str(finding) for finding in check(kernel.ptx)] == []


def attended(kernel: HopperKernel, length: int = 100) -> tuple[Any, Any]:
    """Runs attention; returns the result and the one of numpy in f64."""
    width = 64
    q, k, v = (values((length, width), "bf16", seed) for seed in range(3))
    out = np.zeros((length, width), np.float32)
    arguments: list[Any] = [q, k, v, out, length, 0.125 * np.log2(np.e)]
    found = run_hopper(kernel, (-(-length // 64), 1), arguments, result=3)
    scores = q.astype(np.float64) @ k.astype(np.float64).T * 0.125
    scores[np.triu_indices(length, 1)] = -np.inf
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return found, weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)


def test_attention_has_a_factor_in_tensor_memory() -> None:
    kernel = compile_attention(sm=100)
    assert re.search(r"tcgen05\.mma\S+ \[[^]]*\], \[", kernel.ptx)
    assert_close(*attended(kernel), 2**-7)


@pytest.mark.parametrize("name", ["matmul", "attention"])
def test_fences_of_the_async_proxy_are_asked_for(name: str) -> None:
    kernel = compile_matmul("bf16", sm=100) if name == "matmul" else compile_attention(sm=100)
    assert [str(finding) for finding in check(kernel.ptx)] == []
    pattern = r"fence\.proxy\.async"
    places = range(len(lines_of(kernel.ptx, pattern)))
    found = [check(without(kernel.ptx, pattern, number)) for number in places]
    assert sum(map(bool, found)) >= len(found) // 2 > 0
    assert {finding.rule for each in found for finding in each} == {"shared_writes"}
    assert any("before tcgen05.mma" in finding.message for each in found for finding in each)
