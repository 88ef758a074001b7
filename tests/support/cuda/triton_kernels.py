"""Triton kernels as PTX, compiled without a card, and run on the simulated device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lowerkit.runtimes.cuda.simulated import Kernel, LaunchBuffer, SimulatedGpu

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TritonKernel:
    """A compiled kernel: its PTX, its name there, threads of a block, and bytes of dynamic shared memory."""

    ptx: str
    name: str
    threads: int
    shared: int


@lru_cache(maxsize=64)
def _compiled(
    function: Any, signature: tuple[tuple[str, str], ...], constants: tuple[tuple[str, Any], ...], sm: int,
    options: tuple[tuple[str, Any], ...],
) -> TritonKernel:  # fmt: skip
    types = dict(signature) | {name: "constexpr" for name, _ in constants}
    source = ASTSource(function, types, constexprs=dict(constants))
    made: Any = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=dict(options))
    return TritonKernel(made.asm["ptx"], made.metadata.name, 32 * made.metadata.num_warps, made.metadata.shared)


def compile_triton(
    function: Any, signature: Mapping[str, str], constants: Mapping[str, Any], sm: int = 80, **options: Any
) -> TritonKernel:
    """Compiles a kernel; ``signature`` has the types of its parameters in order, ``options`` those of Triton."""
    return _compiled(function, tuple(signature.items()), tuple(constants.items()), sm, tuple(sorted(options.items())))


def run_triton(
    gpu: SimulatedGpu,
    kernel: TritonKernel,
    blocks: int,
    inputs: Sequence[Array],
    results: Sequence[Array],
    numbers: Sequence[int] = (),
    *,
    ptx: str | None = None,
    loaded: Kernel | None = None,
) -> list[Array]:
    """Runs a kernel whose parameters are inputs (read-only), results (with their first content), then numbers.

    Triton adds two parameters of its own, which are null. ``ptx`` is a changed text of the kernel, ``loaded`` one that
    was loaded before.
    """
    if loaded is None:
        loaded = gpu.load(kernel.ptx if ptx is None else ptx).kernels[kernel.name]
    addresses = [gpu.allocate(max(array.nbytes, 1)) for array in (*inputs, *results)]
    for address, array in zip(addresses, (*inputs, *results), strict=True):
        gpu.write(address, array)
    buffers = [
        LaunchBuffer(address, array.nbytes, f"operand {number}", writable=False)
        for number, (address, array) in enumerate(zip(addresses, inputs, strict=False))
    ]
    ends = addresses[len(inputs) :]
    buffers += [
        LaunchBuffer(address, array.nbytes, f"result {number}")
        for number, (address, array) in enumerate(zip(ends, results, strict=True))
    ]
    nulls = [0] * (len(loaded.parameters) - len(buffers) - len(numbers))
    gpu.launch(loaded, [blocks], [kernel.threads], [*buffers, *numbers, *nulls], kernel.shared)
    found = [
        gpu.read(address, array.nbytes).view(array.dtype).reshape(array.shape)
        for address, array in zip(ends, results, strict=True)
    ]
    for address in addresses:
        gpu.free(address)
    return found
