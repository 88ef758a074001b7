"""Kernels of Triton for sm_90 and later on the simulated device, with descriptors and scratch memory as its launcher
has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lowerkit.runtimes.cuda.simulated import LaunchBuffer, LaunchTensorMap, SimulatedGpu
from tests.kernels.cuda.simulated_triton.launching import DTYPES

Array = np.ndarray[Any, Any]
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
# The driver numbers three types otherwise than the PTX, by which the compiler has them.
_DRIVER_TYPES: Mapping[int, int] = {8: 10, 9: 8, 10: 9}


@dataclass(frozen=True)
class HopperKernel:
    """A compiled kernel.

    Attributes:
        ptx, name: its text, and its name there.
        threads: of a block.
        shared: dynamic shared memory, in bytes.
        scratch: global memory that each block needs, in bytes.
        maps: what the compiler says of each tensor map: swizzle, elem_type and block_size.
    """

    ptx: str
    name: str
    threads: int
    shared: int
    scratch: int
    maps: tuple[Mapping[str, Any], ...]


@lru_cache(maxsize=64)
def _compiled(
    function: Any, types: tuple[tuple[str, str], ...], constants: tuple[tuple[str, Any], ...],
    aligned: frozenset[str], options: tuple[tuple[str, Any], ...], sm: int,
) -> HopperKernel:  # fmt: skip
    given, values = dict(types), dict(constants)
    signature = {name: given.get(name, "constexpr") for name in function.arg_names}
    names = list(function.arg_names)
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source: Any = ASTSource(function, signature, values, attributes)
    made: Any = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=dict(options))
    meta = made.metadata
    maps = tuple(meta.tensordesc_meta or ())
    return HopperKernel(made.asm["ptx"], meta.name, 32 * meta.num_warps, meta.shared, meta.global_scratch_size, maps)


def compile_hopper(
    function: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    aligned: Sequence[str] = (),
    *,
    sm: int = 90,
    **options: Any,
) -> HopperKernel:
    """Compiles a kernel for a level.

    Args:
        function: the kernel.
        types: of the parameters that are no constants.
        constants: values of the others.
        aligned: parameters that may be taken for multiples of 16.
        sm: the level.
        options: num_warps, num_stages.
    """
    options.setdefault("enable_fp_fusion", True)
    return _compiled(
        function, tuple(types.items()), tuple(constants.items()), frozenset(aligned), tuple(sorted(options.items())), sm
    )


def described(dtype: str, rows: int, columns: int) -> str:
    """Returns the type of a parameter that is a descriptor, by its box."""
    return f"tensordesc<{dtype}[{rows}, {columns}]>"


def run_hopper(
    kernel: HopperKernel,
    grid: Sequence[int],
    arguments: Sequence[Array | int],
    *,
    ptx: str | None = None,
    gpu: SimulatedGpu | None = None,
    result: int = 2,
    filled: bool = False,
) -> Array:
    """Runs a kernel; arrays are buffers, or described tensors where the kernel takes descriptors.

    Args:
        kernel: what to run.
        grid: blocks in x, y, z.
        arguments: in the order of the parameters that are no constants; sizes and strides of descriptors are added.
        ptx: another text of it.
        gpu: where; without it a device that refuses to read what nothing has written, and looks for races.
        result: the number of the argument to return.
        filled: whether the result has content before.
    """
    device = gpu or SimulatedGpu(refuse_unwritten=True, check_races=True)
    passed: list[Any] = []
    maps = iter(kernel.maps)
    address = 0
    for number, argument in enumerate(arguments):
        if not isinstance(argument, np.ndarray):
            passed.append(argument)
            continue
        at = device.allocate(argument.nbytes, f"argument {number}")
        if number != result or filled:
            device.write(at, np.ascontiguousarray(argument).view(np.uint8))
        buffer = LaunchBuffer(at, argument.nbytes, f"argument {number}", writable=number == result)
        address = at if number == result else address
        passed += _described(buffer, argument, next(maps)) if kernel.maps else [buffer]
    blocks = int(np.prod(grid))
    loaded = device.load(ptx or kernel.ptx).kernels[kernel.name]
    left = len(loaded.parameters) - len(passed)
    scratch = LaunchBuffer(device.allocate(kernel.scratch * blocks), kernel.scratch * blocks, "scratch")
    passed += [scratch if kernel.scratch else 0, *[0] * (left - 1)]
    device.launch(loaded, grid, [kernel.threads], passed, kernel.shared)
    array = arguments[result]
    assert isinstance(array, np.ndarray)
    return device.read(address, array.nbytes).view(array.dtype).reshape(array.shape)


def _described(buffer: LaunchBuffer, array: Array, meta: Mapping[str, Any]) -> list[Any]:
    """Returns the arguments that stand for a descriptor: the tensor map, sizes, and strides in elements."""
    rows, columns = array.shape
    element = meta["elem_type"]
    tensor_map = LaunchTensorMap(
        buffer,
        (columns, rows),
        (columns * array.itemsize,),
        tuple(meta["block_size"][::-1]),
        _DRIVER_TYPES.get(element, element),
        meta["swizzle"],
    )
    return [tensor_map, rows, columns, columns, 1]


def lines_of(ptx: str, pattern: str) -> list[tuple[int, int]]:
    """Returns where each instruction of a pattern begins and ends; the predicate in front of it is a part of it."""
    return [found.span() for found in re.finditer(rf"(?<=\n)\t(?:@!?%p\d+ )?(?:{pattern})[^\n]*", ptx)]


def without(ptx: str, pattern: str, number: int) -> str:
    """Returns a text without one of the instructions of a pattern; as many lines as before."""
    start, end = lines_of(ptx, pattern)[number]
    return ptx[:start] + "\n" * ptx[start:end].count("\n") + ptx[end:]
