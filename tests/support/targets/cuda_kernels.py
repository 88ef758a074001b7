"""One region on the simulated CUDA device, the way an artifact runs it: planned, compiled, packed, loaded, launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lowerkit.codegen.shapes import result_shapes
from lowerkit.runtimes.cuda.device import SimulatedCudaDevice
from lowerkit.runtimes.cuda.image import pack
from lowerkit.runtimes.expressions import evaluate
from lowerkit.targets.cuda.planner.plan import PlannedRegion, plan_region
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.ptx.emit import emit_ptx
from lowerkit.targets.cuda.ptx.link import join_modules
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import DTYPES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CudaRegion:
    """A compiled region: its launches, and the module of its kernels."""

    view: RegionView
    planned: PlannedRegion
    level: str
    ptx: str


def compile_cuda(view: RegionView, level: str = "sm_90") -> CudaRegion:
    """Compiles a region, and has ptxas look at it where there is one."""
    planned = plan_region(view)
    ptx = join_modules({name: _emitted(text, level) for name, text in planned.kernels.items()})
    assembler = ptxas.find_ptxas()
    if assembler is not None and ptx:
        ptxas.assemble(assembler, ptx, level)
    return CudaRegion(view, planned, level, ptx)


@lru_cache(maxsize=256)
def _emitted(text: str, level: str) -> str:
    return emit_ptx(text, level)


def run_cuda(region: CudaRegion, inputs: Sequence[Array]) -> list[Array]:
    """Runs a region on a fresh device that holds every launch against its buffers; returns the results."""
    device = SimulatedCudaDevice(region.level)
    data, (start,) = pack([region.planned.function], region.level, region.ptx.encode(), b"")
    program = device.load(np.frombuffer(data, np.uint8)[start:])
    shapes = result_shapes(region.view, [array.shape for array in inputs])
    results = [
        np.zeros([evaluate(extent, {}) for extent in shape], DTYPES[str(type_.element_type)])
        for shape, type_ in zip(shapes, region.view.results, strict=True)
    ]
    buffers = [*inputs, *results]
    dims = [
        size
        for array, type_ in zip(buffers, region.view.buffer_types, strict=True)
        for axis, size in enumerate(array.shape)
        if type_.is_dynamic_dim(axis)
    ]
    addresses = [device.allocate(max(array.nbytes, 1)) for array in buffers]
    for address, array in zip(addresses, inputs, strict=False):
        device.copy_in(address, _bytes(array), 0)
    device.launch(program, addresses, dims, 0)
    for address, result in zip(addresses[len(inputs) :], results, strict=True):
        device.copy_out(_bytes(result), address, 0)
    return results


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
