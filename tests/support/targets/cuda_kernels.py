"""One region on the simulated CUDA device, the way an artifact runs it: planned, compiled, packed, loaded, launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from lowerkit.codegen.shapes import result_shapes
from lowerkit.runtimes.cuda.device import SimulatedCudaDevice
from lowerkit.runtimes.expressions import evaluate
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.planner.plan import plan_region
from lowerkit.targets.cuda.ptx.link import link_regions
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.plan import DeviceCode, LinkSettings
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import DTYPES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CudaRegion:
    """A compiled region: its launches, and the image of its kernels."""

    view: RegionView
    planned: PlannedRegion
    level: str
    code: bytes


def compile_cuda(view: RegionView, level: str = "sm_90", *, fast: bool = False) -> CudaRegion:
    """Compiles a region, and has ptxas look at it where there is one; ``fast`` asks the fast families first."""
    planned = select_kernels(view, level)[0] if fast else plan_region(view)
    return CudaRegion(view, planned, level, _linked(msgspec.json.encode({level: planned})))


def compile_with(planned: PlannedRegion, view: RegionView, level: str = "sm_90") -> CudaRegion:
    """Compiles a region that is planned already."""
    return CudaRegion(view, planned, level, _linked(msgspec.json.encode({level: planned})))


@lru_cache(maxsize=256)
def _linked(payload: bytes) -> bytes:
    return bytes(link_regions([DeviceCode("test", payload)], LinkSettings(workers=1)).data)


def run_cuda(region: CudaRegion, inputs: Sequence[Array], device: SimulatedCudaDevice | None = None) -> list[Array]:
    """Runs a region on a device (a fresh one) that holds every launch against its buffers; returns the results.

    Weights that the plan wants in a layout of its own are brought there.
    """
    device = device or SimulatedCudaDevice(region.level)
    program = device.load(np.frombuffer(region.code, np.uint8))
    shapes = result_shapes(region.view, [array.shape for array in inputs])
    results = [
        np.zeros([evaluate(extent, {}) for extent in shape], DTYPES[str(type_.element_type)])
        for shape, type_ in zip(shapes, region.view.results, strict=True)
    ]
    buffers = [*_packed(region.planned, inputs), *results]
    dims = [
        size
        for array, type_ in zip([*inputs, *results], region.view.buffer_types, strict=True)
        for axis, size in enumerate(array.shape)
        if type_.is_dynamic_dim(axis)
    ]
    addresses = [device.allocate(max(array.nbytes, 1)) for array in buffers]
    for address, array in zip(addresses, buffers[: len(inputs)], strict=False):
        device.copy_in(address, _bytes(array), 0)
    for result, operand in region.planned.function.in_place.items():
        device.copy(addresses[len(inputs) + result], addresses[operand], results[result].nbytes, 0)
    device.launch(program, addresses, dims, 0)
    for address, result in zip(addresses[len(inputs) :], results, strict=True):
        device.copy_out(_bytes(result), address, 0)
    return results


def _packed(planned: PlannedRegion, inputs: Sequence[Array]) -> list[Array]:
    layouts: Mapping[int, Any] = planned.layouts()
    return [layouts[number].apply(array) if number in layouts else array for number, array in enumerate(inputs)]


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
