"""Matrix products whose operands threads copy, and attention, compiled and run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton.language as tl

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from tests.kernels.cuda.simulated_hopper.running import HopperKernel, compile_hopper, run_hopper
from tests.kernels.cuda.simulated_triton.launching import DTYPES, values
from tests.kernels.cuda.simulated_triton.matrix_programs import attention, matmul

Array = np.ndarray[Any, Any]
TYPES: Mapping[str, tuple[Any, str, float, int]] = {  # accumulator, result, tolerance, K of a block
    "bf16": (tl.float32, "bf16", 2**-8, 64),
    "fp16": (tl.float32, "fp16", 2**-11, 64),
    "i8": (tl.int32, "i32", 0, 64),
    "fp8e4nv": (tl.float32, "fp32", 2**-8, 64),
    "fp8e5": (tl.float32, "fp32", 2**-8, 64),
    "fp32": (tl.float32, "fp32", 2**-9, 32),
}
SIZES = ["m", "n", "k", "stride_a", "stride_b", "stride_c"]


def compile_matmul(
    dtype: str,
    block: tuple[int, int, int] = (64, 64, 64),
    *,
    warps: int = 4,
    stages: int = 3,
    aligned: bool = True,
    accumulator: Any = None,
    sm: int = 90,
) -> HopperKernel:
    """Compiles a product of matrices of a type of TYPES, for alignment by 16 or none."""
    total, result, _, _ = TYPES[dtype]
    types = {"a": f"*{dtype}", "b": f"*{dtype}", "c": f"*{result}"} | dict.fromkeys(SIZES, "i32")
    constants = {
        "BLOCK_M": block[0], "BLOCK_N": block[1], "BLOCK_K": block[2], "ACCUMULATOR": accumulator or total,
        "PRECISION": "tf32",
    }  # fmt: skip
    names = ["a", "b", "c", "k", "stride_a", "stride_b", "stride_c"] if aligned else []
    return compile_hopper(matmul, types, constants, names, sm=sm, num_warps=warps, num_stages=stages)


def run_matmul(
    kernel: HopperKernel,
    dtype: str,
    sizes: tuple[int, int, int],
    block: tuple[int, int, int],
    *,
    ptx: str | None = None,
    gpu: SimulatedGpu | None = None,
) -> tuple[Array, Array]:
    """Returns the result and the one of numpy in f64; rows of B and C have up to 15 elements of padding."""
    m, n, k = sizes
    stride = -(-n // 16) * 16
    a, b = values((m, k), dtype, 1), values((k, stride), dtype, 2)
    c = np.zeros((m, stride), DTYPES[TYPES[dtype][1]])
    grid = (-(-m // block[0]), -(-n // block[1]))
    found = run_hopper(kernel, grid, [a, b, c, m, n, k, k, stride, stride], ptx=ptx, gpu=gpu)
    return found[:, :n], a.astype(np.float64) @ b[:, :n].astype(np.float64)


def compile_attention(sm: int = 90) -> HopperKernel:
    """Compiles attention of 64 features: the second product has a factor in registers."""
    constants = {"CAUSAL": True, "BLOCK_M": 64, "BLOCK_N": 64, "WIDTH": 64}
    types = dict.fromkeys(("q", "k", "v"), "*bf16") | {"out": "*fp32", "length": "i32", "scale": "fp32"}
    return compile_hopper(attention, types, constants, ["q", "k", "v", "out"], sm=sm, num_warps=4, num_stages=2)
