"""Kernels whose tensors the TMA unit copies, against numpy in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.cuda.simulated_hopper.described import FORMS, Block, compile_form, run_form
from tests.kernels.cuda.simulated_hopper.described_more import (
    compile_described_attention,
    compile_quantized,
    compile_transposed,
)
from tests.kernels.cuda.simulated_hopper.hopper_programs import combined, copied, rows_of_many
from tests.kernels.cuda.simulated_hopper.running import compile_hopper, described, run_hopper
from tests.kernels.cuda.simulated_triton.launching import DTYPES, assert_close, values


@pytest.mark.parametrize("form", FORMS)
def test_matmul(form: str) -> None:
    kernel = compile_form(form)
    assert "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes" in kernel.ptx
    assert ("tensormap.replace" in kernel.ptx) == (form == "describing")
    assert ("setmaxnreg" in kernel.ptx) == ("tasks" in form)
    found, expected = run_form(form, kernel)
    assert_close(found, expected, 2**-8)


@pytest.mark.parametrize("form", FORMS)
def test_sizes_that_are_no_multiples_of_a_box(form: str) -> None:
    found, expected = run_form(form, compile_form(form), sizes=(80, 112, 48))
    assert_close(found, expected, 2**-8)


@pytest.mark.parametrize(
    ("form", "dtype", "block", "warps", "tolerance"),
    [
        ("described", "fp16", (128, 128, 64), 8, 2**-11),
        ("described", "bf16", (64, 64, 32), 4, 2**-8),
        ("described", "bf16", (128, 64, 16), 4, 2**-8),
        ("tasks", "fp16", (128, 128, 64), 8, 2**-11),
        ("tasks", "bf16", (64, 64, 32), 4, 2**-8),
    ],
)
def test_types_and_boxes(form: str, dtype: str, block: Block, warps: int, tolerance: float) -> None:
    """Boxes with rows of 128, 64 and 32 bytes."""
    kernel = compile_form(form, dtype, block, warps)
    found, expected = run_form(form, kernel, dtype, (256, 128, 80), block)
    assert_close(found, expected, tolerance)


@pytest.mark.parametrize(("rows", "warps", "tasks"), [(64, 4, False), (128, 8, False), (64, 4, True)])
def test_attention(rows: int, warps: int, tasks: bool) -> None:
    length, width = 176, 64
    q, k, v = (values((length, width), "bf16", seed) for seed in range(3))
    kernel = compile_described_attention(rows, warps, tasks)
    found = run_hopper(
        kernel, (-(-length // rows),), [q, k, v, np.zeros((length, width), np.float16), length], result=3
    )
    score = q.astype(np.float64) @ k.astype(np.float64).T * 0.125
    power = np.exp(score - score.max(1, keepdims=True))
    assert_close(found, power @ v.astype(np.float64) / power.sum(1, keepdims=True), 2**-6)


@pytest.mark.parametrize(("dtype", "k"), [("bf16", 160), ("fp8e5", 192)])
def test_transposed_factors(dtype: str, k: int) -> None:
    """Of two bytes by the descriptors of wgmma; those of one byte are turned around by threads."""
    m, n = 128, 64
    a, b = values((k, m), dtype, 1), values((n, k), dtype, 2)
    found = run_hopper(compile_transposed(dtype), (2, 1), [a, b, np.zeros((m, n), np.float16), m, n, k])
    assert_close(found, a.astype(np.float64).T @ b.astype(np.float64).T, 2**-8)


def test_a_factor_of_integers_that_become_bf16() -> None:
    m, n, k = 100, 128, 160
    a, b = values((m, k), "i8", 1), values((k, n), "bf16", 2)
    found = run_hopper(compile_quantized(), (2, 2), [a, b, np.zeros((m, n), np.float32), m, n, k])
    assert_close(found, a.astype(np.float64) @ b.astype(np.float64), 2**-16)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "i32"])
def test_a_box_there_and_back(dtype: str) -> None:
    types = {"x": described(dtype, 32, 32), "y": described(dtype, 32, 32), "m": "i32", "n": "i32"}
    kernel = compile_hopper(copied, types, {"BLOCK_M": 32, "BLOCK_N": 32}, num_warps=4)
    x = values((40, 48), dtype)
    found = run_hopper(kernel, (2, 2), [x, np.zeros_like(x), 40, 48], result=1)
    assert (found == x + x).all()


@pytest.mark.parametrize("how", ["add", "min", "max", "and", "or", "xor"])
def test_boxes_are_combined_with_what_is_there(how: str) -> None:
    dtype = "fp32" if how == "add" else "i32"
    types = {"x": described(dtype, 32, 32), "y": described(dtype, 32, 32), "m": "i32", "n": "i32"}
    kernel = compile_hopper(combined, types, {"BLOCK_M": 32, "BLOCK_N": 32, "HOW": how}, num_warps=4)
    assert f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{how}.bulk_group" in kernel.ptx
    x, y = values((64, 64), dtype, 1), values((64, 64), dtype, 2)
    found = run_hopper(kernel, (2, 2), [x, y, 64, 64], result=1, filled=True)
    function: Any = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                     "xor": np.bitwise_xor}[how]  # fmt: skip
    assert (found == function(x, y)).all()


def test_tensors_are_described_anew_in_a_loop() -> None:
    types = {"x": "*fp32", "y": "*fp32", "sizes": "*i32", "count": "i32", "width": "i32"}
    constants = {"BLOCK_M": 16, "BLOCK_N": 32}
    kernel = compile_hopper(rows_of_many, types, constants, ["x", "y", "width"], num_warps=4)
    sizes = np.array([5, 16, 33, 1], DTYPES["i32"])
    x = values((int(sizes.sum()), 32), "fp32")
    found = run_hopper(kernel, (1,), [x, np.zeros_like(x), sizes, sizes.size, 32], result=1)
    assert (found == x + 1).all()
