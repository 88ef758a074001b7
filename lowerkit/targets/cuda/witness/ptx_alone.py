"""The PTX of a region, alone on a fresh simulated device: its own launches, each buffer in an allocation of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.cuda.driver import LaunchBuffer
from lowerkit.runtimes.cuda.image import ImageError
from lowerkit.runtimes.cuda.launch_arguments import arguments_of, shaped_maps
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion
from lowerkit.targets.cuda.ptx.compile import Compiled, compile_kernels
from lowerkit.targets.cuda.ptx.link import assemblers_for, launch_with_code
from lowerkit.targets.cuda.witness.placed import PlacedRegion
from lowerkit.targets.plan import LinkSettings
from lowerkit.targets.witness import Offence, Witness

NAME = "the PTX alone"


def ptx_witness(placed: PlacedRegion, level: str) -> Witness:
    """Returns what the PTX gives.

    Args:
        placed: the region.
        level: for which its kernels are compiled, as the model's are: from the cache where they lie there.
    """
    planned = placed.planned
    fast = any(isinstance(kernel, FastKernel) for kernel in planned.kernels.values())
    layer = "Triton's lowering" if fast else "LLVM's lowering"
    author = f"{placed.kernels} for {level}"
    compiled: dict[str, Compiled] = {}
    try:
        keyed = {(level, name): kernel for name, kernel in planned.kernels.items()}
        found = compile_kernels(keyed, LinkSettings(workers=1), KernelCache(), assemblers_for([level])[0])
        compiled = {name: code for (_, name), code in found.items()}
        results = _run(placed, compiled, level)
    except KernelFault as fault:
        return Witness(NAME, layer, author, offence=Offence(fault.message, _places(fault, planned)))
    except LowerkitError as error:
        return Witness(NAME, layer, author, missing=error.message)
    except ImageError as error:
        return Witness(NAME, layer, author, missing=str(error))
    return Witness(NAME, layer, author, placed.arrays(results))


def _run(placed: PlacedRegion, compiled: Mapping[str, Compiled], level: str) -> list[bytes]:
    driver = SimulatedDriver()
    try:
        buffers: list[LaunchBuffer] = []
        for buffer in placed.buffers:
            address = driver.allocate(max(buffer.size, 1))
            if buffer.data:
                driver.write(address, np.frombuffer(buffer.data, np.uint8), 0)
            buffers.append(LaunchBuffer(address, buffer.size, buffer.name, buffer.writable))
        for each in placed.launches:
            code = compiled[each.launch.kernel]
            kernel = driver.kernel(driver.load(code.ptx.encode(), b"", level), each.launch.kernel)
            launch = launch_with_code(each.launch, code)
            maps = shaped_maps(launch, placed.dims, [buffer.size for buffer in placed.buffers])
            arguments = arguments_of(launch, buffers, maps, placed.dims, driver.prepared)
            driver.launch(kernel, each.blocks, launch.block, launch.shared, arguments, 0, early=launch.early)
        driver.synchronize(0)
        operands = len(placed.planned.function.operands)
        found: list[bytes] = []
        for buffer in buffers[operands : operands + len(placed.results)]:
            data = np.empty(buffer.size, np.uint8)
            if buffer.size:
                driver.read(data, buffer.address, 0)
            found.append(data.tobytes())
        return found
    finally:
        driver.close()


def _places(fault: KernelFault, planned: PlannedRegion) -> tuple[str, ...]:
    """The line of the kernel and its text, where the PTX says them, then the instruction."""
    places: list[str] = []
    if fault.location:
        kernels = [each.kernel for each in planned.kernels.values() if isinstance(each, FastKernel)]
        number = fault.location.rpartition(":")[2]
        named = next((n for n, k in planned.kernels.items() if isinstance(k, FastKernel) and n in (fault.op or "")), "")
        source = planned.kernels.get(named)
        text = (
            source.kernel.source if isinstance(source, FastKernel) else kernels[0].source if len(kernels) == 1 else ""
        )
        places.append(source_line(fault.location, text, number))
    return (*places, *([fault.op] if fault.op else []))


def source_line(location: str, source: str, number: str) -> str:
    """Returns a line of a kernel with its text, where it has one."""
    lines = source.splitlines()
    text = lines[int(number) - 1].strip() if number.isdecimal() and 0 < int(number) <= len(lines) else ""
    return f"{location}: {text}" if text else location
