"""Triton kernels compiled without a GPU, and run on the simulated device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lowerkit.runtimes.cuda.simulated import LaunchStatistics, SimulatedGpu

Array = np.ndarray[Any, Any]
DTYPES: Mapping[str, Any] = {
    "fp64": np.float64,
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": bfloat16,
    "fp8e4nv": float8_e4m3fn,
    "fp8e5": float8_e5m2,
    "i1": np.bool_,
    "i8": np.int8,
    "u8": np.uint8,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
}
_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
TARGETS = [80, 90]


@dataclass(frozen=True)
class Compiled:
    """A kernel; ``shared`` is what a launch asks for, in bytes."""

    ptx: str
    name: str
    threads: int
    shared: int


def compile_kernel(
    function: Any,
    arguments: Sequence[Array | int | float],
    constants: Mapping[str, Any],
    target: int,
    aligned: bool,
    options: Mapping[str, Any],
) -> Compiled:
    """Compiles a kernel for arguments; with ``aligned``, it may take arrays and integers for multiples of 16."""
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for number, argument in enumerate(arguments):
        name = function.arg_names[number]
        if isinstance(argument, np.ndarray):
            signature[name] = f"*{_NAMES[argument.dtype]}"
        else:
            signature[name] = "i32" if isinstance(argument, int) else "fp32"
        if aligned and (isinstance(argument, np.ndarray) or (isinstance(argument, int) and argument % 16 == 0)):
            attributes[(number,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constants, "constexpr")
    source: Any = ASTSource(function, signature, dict(constants), attributes)
    kernel: Any = triton.compile(source, target=GPUTarget("cuda", target, 32), options=dict(options))
    return Compiled(kernel.asm["ptx"], kernel.metadata.name, 32 * kernel.metadata.num_warps, kernel.metadata.shared)


def run_kernel(
    function: Any,
    grid: Sequence[int],
    arguments: Sequence[Array | int | float],
    results: Sequence[int],
    constants: Mapping[str, Any] | None = None,
    *,
    target: int = 80,
    aligned: bool = True,
    gpu: SimulatedGpu | None = None,
    **options: Any,
) -> list[Array]:
    """Runs a kernel; an array among the arguments is a buffer of its own.

    Args:
        function: the kernel.
        grid: blocks in x, y, z.
        arguments: those that are no constants.
        results: the numbers of the arguments to return.
        constants: values of the others.
        target: 80 or 90.
        aligned: whether the compiler is told of sizes that are multiples of 16.
        gpu: where to run; without it, on a device that refuses to read what nothing has written.
        options: num_warps, num_stages.
    """
    compiled = compile_kernel(function, arguments, constants or {}, target, aligned, options)
    device = gpu or SimulatedGpu(refuse_unwritten=True)
    return launch(compiled, device, grid, arguments, results)[0]


def launch(
    compiled: Compiled,
    gpu: SimulatedGpu,
    grid: Sequence[int],
    arguments: Sequence[Array | int | float],
    results: Sequence[int],
) -> tuple[list[Array], LaunchStatistics]:
    """Launches a compiled kernel; returns the results and what the launch ran."""
    passed: list[Any] = []
    for number, argument in enumerate(arguments):
        if not isinstance(argument, np.ndarray):
            passed.append(argument)
            continue
        passed.append(gpu.allocate(argument.nbytes, f"argument {number}"))
        if not isinstance(argument, Unwritten):
            gpu.write(passed[-1], argument)
    kernel = gpu.load(compiled.ptx).kernels[compiled.name]
    passed += [0] * (len(kernel.parameters) - len(passed))  # scratch memory that these kernels do not use
    statistics = gpu.launch(kernel, grid, [compiled.threads], passed, compiled.shared)
    found: list[Array] = []
    for number in results:
        argument = arguments[number]
        assert isinstance(argument, np.ndarray)
        found.append(gpu.read(passed[number], argument.nbytes).view(argument.dtype).reshape(argument.shape))
    for address, argument in zip(passed, arguments, strict=False):
        if isinstance(argument, np.ndarray):
            gpu.free(address)
    return found, statistics


class Unwritten(np.ndarray[Any, Any]):
    """The shape and type of a buffer that nothing has written."""


def unwritten(shape: Sequence[int] | int, dtype: str) -> Array:
    """Returns a buffer for a result."""
    return np.empty(shape, DTYPES[dtype]).view(Unwritten)


def values(shape: Sequence[int] | int, dtype: str, seed: int = 0) -> Array:
    """Returns normal values, or small integers."""
    generator = np.random.default_rng(seed)
    if dtype.startswith(("i", "u")):
        return generator.integers(-8 if dtype[0] == "i" else 0, 8, shape).astype(DTYPES[dtype])
    return generator.standard_normal(shape).astype(DTYPES[dtype])


def assert_close(found: Array, expected: Array, tolerance: float) -> None:
    """Compares with a result in f64; the tolerance is relative, and absolute below the largest expected value / 8."""
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance * scale / 8)
