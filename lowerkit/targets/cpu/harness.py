"""Runs one kernel in this process, through the same compiler and linker as an artifact: for tests and for tuning."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.runtimes.expressions import evaluate
from lowerkit.targets.cpu.levels import CpuFeatures, cpu_features
from lowerkit.targets.cpu.objects.linker import CodeImage, link_image
from lowerkit.targets.cpu.objects.lower import lower_to_object
from lowerkit.targets.plan import DeviceCode

Array = np.ndarray[Any, Any]
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class LoadedImage:
    """A code image mapped executable in this process; its import table filled from the C math library."""

    def __init__(self, image: CodeImage) -> None:
        size = max(len(image.data), 1)
        self._map = mmap.mmap(-1, size, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._map[: len(image.data)] = image.data
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        library = ctypes.CDLL("libm.so.6")  # finds the string functions of the C library too
        table = (ctypes.c_uint64 * len(image.imports)).from_address(base + image.import_table_offset)
        for slot, name in enumerate(image.imports):
            table[slot] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        self.functions = [_SIGNATURE(base + offset) for offset in image.entries]


class LoadedKernel:
    """One compiled plan, ready to be called on numpy arrays."""

    def __init__(self, plan: DeviceCode, features: CpuFeatures | None = None) -> None:
        cpu = features or cpu_features()
        if cpu.amx:
            _request_amx()
        self.plan = plan
        self._image = LoadedImage(link_image([lower_to_object(plan.text, cpu)]))
        self._function = self._image.functions[0]

    def bind(self, arrays: Sequence[Array], dims: Sequence[int] = ()) -> tuple[Any, int]:
        """Returns a function ``call(task_begin, task_end)`` over ``arrays`` and the number of tasks.

        Args:
            arrays: contiguous operands (weights already packed), then preallocated results.
            dims: the dynamic dims of operands, then of results.
        """
        for array in arrays:
            assert array.flags.c_contiguous, "kernels take contiguous arrays"
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        sizes = (ctypes.c_int64 * max(len(dims), 1))(*dims)
        scratch_bytes = evaluate(self.plan.scratch_bytes, {}, dims)
        scratch = np.full(scratch_bytes + 64, 0xA5, np.uint8)
        address = (scratch.ctypes.data + 63) & ~63

        def call(task_begin: int, task_end: int) -> None:
            self._function(ctypes.addressof(pointers), ctypes.addressof(sizes), task_begin, task_end, address)

        call.keep_alive = (arrays, pointers, sizes, scratch)  # type: ignore[attr-defined]
        return call, evaluate(self.plan.task_count, {}, dims)


def run_kernel_for_test(
    plan: DeviceCode,
    arrays: Sequence[Array],
    dims: Sequence[int] = (),
    features: CpuFeatures | None = None,
    tasks: Sequence[tuple[int, int]] | None = None,
) -> Sequence[Array]:
    """Compiles ``plan``, runs it on ``arrays`` (results included, written in place) and returns ``arrays``.

    Args:
        plan: the kernel.
        arrays: contiguous operands, packed where the plan packs them, then results.
        dims: the dynamic dims of operands, then of results.
        features: the level to compile for; None is this machine's.
        tasks: ranges to run one after another; None runs all tasks in one range.
    """
    call, count = LoadedKernel(plan, features).bind(arrays, dims)
    for begin, end in tasks if tasks is not None else [(0, count)]:
        call(begin, end)
    return arrays


def time_kernel(
    plan: DeviceCode,
    arrays: Sequence[Array],
    dims: Sequence[int] = (),
    features: CpuFeatures | None = None,
    repeats: int = 20,
) -> int:
    """Returns the least nanoseconds of ``repeats`` runs of all tasks on one thread, after one run to warm up."""
    call, count = LoadedKernel(plan, features).bind(arrays, dims)
    call(0, count)
    best = 2**63
    for _ in range(repeats):
        started = time.perf_counter_ns()
        call(0, count)
        best = min(best, time.perf_counter_ns() - started)
    return best


def _request_amx() -> None:
    """Asks the kernel for the tile state: once a process, and again does no harm."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
