"""One launch: checks its sizes, passes its arguments, and runs its blocks batch by batch."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.simulated.arithmetic import Arithmetic
from lowerkit.runtimes.cuda.simulated.batch import Batch, Geometry
from lowerkit.runtimes.cuda.simulated.block_memory import BlockMemory
from lowerkit.runtimes.cuda.simulated.device_memory import DeviceMemory
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.kernel import MOST_SHARED, Kernel
from lowerkit.runtimes.cuda.simulated.queues.grid_dependency import GridDependency
from lowerkit.runtimes.cuda.simulated.races.detector import Races
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, is_float
from lowerkit.runtimes.cuda.simulated.scheduler import Scheduler
from lowerkit.runtimes.cuda.simulated.text.syntax import Parameter

Argument = int | float | bytes
_MOST_GRID = (2**31 - 1, 65535, 65535)
_MOST_BLOCK = (1024, 1024, 64)
_MOST_THREADS = 1024
# Threads of a batch: enough that numpy's cost of a call is spread, few enough that registers stay in the cache.
_BATCH_THREADS = 16384
_BATCH_BYTES = 1 << 28  # of shared memory, and of local memory
_FLOAT_CODES = {"f16": "<e", "f32": "<f", "f64": "<d"}


@dataclass(frozen=True)
class LaunchStatistics:
    """What a launch ran.

    Attributes:
        issued: instructions, once for each group of threads that ran one together.
        thread_instructions: instructions, once for each thread.
    """

    issued: int
    thread_instructions: int


def run_launch(
    kernel: Kernel,
    memory: DeviceMemory,
    geometry: Geometry,
    arguments: Sequence[Argument],
    shared_bytes: int,
    limit: int,
    arithmetic: Arithmetic,
    *,
    check_races: bool,
    record_coverage: bool,
    early: bool = False,
) -> LaunchStatistics:
    """Runs all blocks.

    Args:
        kernel: what to run.
        memory: the global memory.
        geometry: blocks and threads.
        arguments: one for each parameter: an int, a float for a float parameter, bytes for an array of bytes.
        shared_bytes: dynamic shared memory of a block.
        limit: how many instructions one batch may issue.
        arithmetic: of tensor cores and approximations.
        check_races: whether accesses that nothing orders are a fault.
        record_coverage: whether the kernel takes note of which instructions ran.
        early: whether it may start before the launch in front of it has ended: its threads must wait for that.

    Raises:
        KernelFault: LK8017, sizes or arguments do not fit the kernel, or a thread does what it must not.
    """
    _check_sizes(kernel, geometry, shared_bytes)
    if len(arguments) != len(kernel.parameters):
        raise KernelFault(
            f"kernel {kernel.name} has {len(kernel.parameters)} parameters, {len(arguments)} arguments are given"
        )
    parameters = {
        parameter.name: _bytes_of(kernel, parameter, argument)
        for parameter, argument in zip(kernel.parameters, arguments, strict=True)
    }
    shared = kernel.shared_bytes + shared_bytes
    largest = max(shared, kernel.local_bytes * geometry.width, 1)
    most = max(1, min(_BATCH_THREADS // geometry.width, _BATCH_BYTES // largest))
    races = Races(geometry, memory, kernel.slots.use, kernel.readers) if check_races else None
    issued = thread_instructions = 0
    for first in range(0, geometry.blocks, most):
        blocks = min(most, geometry.blocks - first)
        threads = blocks * geometry.width
        batch = Batch(
            geometry,
            first,
            blocks,
            memory,
            BlockMemory("shared", blocks, shared, memory.track_written),
            BlockMemory("local", threads, kernel.local_bytes, memory.track_written),
            parameters,
            arithmetic=arithmetic.of_target(kernel.target),
            races=races,
            coverage=kernel.coverage if record_coverage else None,
        )
        if early:
            batch.state(GridDependency).begin_early(kernel.name)
        if races is not None:
            races.begin(batch)
        batch.registers = list(kernel.slots.template)
        for name, slot in kernel.slots.special.items():
            batch.registers[slot] = batch.special_register(name)
        scheduler = Scheduler(kernel.blocks, batch, limit)
        with np.errstate(all="ignore"):
            scheduler.run()
        if races is not None:
            races.end()
        issued += scheduler.issued
        thread_instructions += scheduler.thread_instructions
    return LaunchStatistics(issued, thread_instructions)


def _check_sizes(kernel: Kernel, geometry: Geometry, shared_bytes: int) -> None:
    for what, sizes, most in (("grid", geometry.grid, _MOST_GRID), ("block", geometry.block, _MOST_BLOCK)):
        if any(not 0 < size <= limit for size, limit in zip(sizes, most, strict=True)):
            raise KernelFault(f"kernel {kernel.name}: a {what} of {sizes}; from (1, 1, 1) to {most} is allowed")
    most_threads = min(_MOST_THREADS, kernel.most_threads or _MOST_THREADS)
    if geometry.threads > most_threads:
        raise KernelFault(f"kernel {kernel.name}: {geometry.threads} threads in a block, {most_threads} are allowed")
    if kernel.required_block is not None and kernel.required_block != geometry.block:
        raise KernelFault(f"kernel {kernel.name}: blocks of {geometry.block}, it needs {kernel.required_block}")
    if shared_bytes < 0 or kernel.shared_bytes + shared_bytes > MOST_SHARED:
        raise KernelFault(
            f"kernel {kernel.name}: {shared_bytes} bytes of shared memory beside its own {kernel.shared_bytes}; "
            f"{MOST_SHARED} are allowed"
        )


def _bytes_of(kernel: Kernel, parameter: Parameter, argument: Argument) -> Array:
    """Returns the bytes of an argument as the kernel reads them."""
    what = f"kernel {kernel.name}: argument {argument!r:.60} for {parameter.name} (.{parameter.type})"
    if parameter.count is not None or isinstance(argument, bytes):
        if not isinstance(argument, bytes) or len(argument) != parameter.size:
            raise KernelFault(f"{what}: {parameter.size} bytes are needed")
        return np.frombuffer(argument, np.uint8)
    if is_float(parameter.type):
        code = _FLOAT_CODES.get(parameter.type)
        if code is None:
            raise KernelFault(f"{what}: pass it as {parameter.size} bytes")
        try:
            return np.frombuffer(struct.pack(code, argument), np.uint8)
        except OverflowError:  # as the nearest float of the type, which is an infinity
            return np.frombuffer(struct.pack(code, math.copysign(math.inf, argument)), np.uint8)
    bits = 8 * parameter.size
    if isinstance(argument, float) or not -(1 << bits - 1) <= argument < 1 << bits:
        raise KernelFault(f"{what}: an integer of {bits} bits is needed")
    return np.frombuffer((argument & (1 << bits) - 1).to_bytes(parameter.size, "little"), np.uint8)
