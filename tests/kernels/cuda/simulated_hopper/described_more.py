"""Attention, transposed factors and factors that are made in registers, compiled."""

from __future__ import annotations

from tests.kernels.cuda.simulated_hopper.hopper_programs import described_attention, quantized_matmul, transposed_matmul
from tests.kernels.cuda.simulated_hopper.running import HopperKernel, compile_hopper, described

_SIZES = ("m", "n", "k")
_BLOCK = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}


def compile_described_attention(rows: int, warps: int, tasks: bool) -> HopperKernel:
    """Compiles attention of 64 features, ``rows`` of them for each block."""
    types = {name: described("bf16", size, 64) for name, size in (("q", rows), ("k", 64), ("v", 64))}
    types |= {"out": described("fp16", rows, 64), "length": "i32"}
    constants = {"SCALE": 0.125, "BLOCK_M": rows, "BLOCK_N": 64, "WIDTH": 64, "TASKS": tasks}
    return compile_hopper(described_attention, types, constants, num_warps=warps, num_stages=2)


def compile_transposed(dtype: str) -> HopperKernel:
    """Compiles a product of two transposed factors."""
    types = {"a": described(dtype, 64, 64), "b": described(dtype, 64, 64), "c": described("fp16", 64, 64)}
    types |= dict.fromkeys(_SIZES, "i32")
    return compile_hopper(transposed_matmul, types, _BLOCK, ["k"], num_warps=4, num_stages=3)


def compile_quantized() -> HopperKernel:
    """Compiles a product whose left factor has 8 bits."""
    types = {"a": "*i8", "b": "*bf16", "c": "*fp32"} | dict.fromkeys(_SIZES, "i32")
    return compile_hopper(quantized_matmul, types, _BLOCK, ["a", "b", "c", "n", "k"], num_warps=4, num_stages=3)
