"""Planned regions to the image of an artifact: each kernel compiled once for each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from lowerkit.runtimes.cuda.image import Function, Launch, pack
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cuda.planned import Kernel, PlannedRegion
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.ptx.compile import Compiled, compile_kernels
from lowerkit.targets.cuda.triton import toolchain
from lowerkit.targets.plan import DeviceCode, LinkedCode, LinkSettings

Regions = Mapping[str, PlannedRegion]
"""A region as it is planned for each level."""


def link_regions(codes: Sequence[DeviceCode], settings: LinkSettings) -> LinkedCode:
    """Compiles the kernels of all regions and packs them.

    Raises:
        CodegenError: LK5001, a kernel could not be made, or ptxas does not take it.
    """
    regions = [msgspec.json.decode(code.payload, type=dict[str, PlannedRegion]) for code in codes]
    kernels: dict[tuple[str, str], Kernel] = {}
    for region in regions:
        for level, planned in region.items():
            kernels.update({(level, name): kernel for name, kernel in planned.kernels.items()})
    levels = sorted({level for level, _ in kernels})
    assemblers, remarks = assemblers_for(levels)
    if kernels and not toolchain.version():
        remarks.append(
            f"Triton {toolchain.PINNED} is not installed: all kernels are plain loops; pip install 'lowerkit[cuda]'"
        )
    cache = KernelCache() if settings.use_cache else None
    compiled = compile_kernels(kernels, settings, cache, assemblers)
    if cache is not None and cache.problem:
        remarks.append(cache.problem)
    functions = [
        {level: _with_code(planned.function, level, compiled) for level, planned in region.items()}
        for region in regions
    ]
    data, starts = pack(functions, {each: kernel.in_image for each, kernel in compiled.items()})
    return LinkedCode(data, starts, [len(data) - start for start in starts], remarks=remarks)


def assemblers_for(levels: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    """Returns the assembler for each level that one is there for, and what there is none for, in words."""
    found = [path for path in (ptxas.find_ptxas(), toolchain.bundled_ptxas()) if path is not None]
    if levels and not found:
        return {}, ["ptxas was not found: the image holds PTX alone, which the driver compiles when it is loaded"]
    assemblers: dict[str, Path] = {}
    remarks: list[str] = []
    for level in levels:
        path = next((each for each in found if ptxas.knows(each, level)), None)
        if path is None:
            remarks.append(f"ptxas {ptxas.version(found[0])} does not know {level}: the image holds PTX alone for it")
        else:
            assemblers[level] = path
    return assemblers, remarks


def _with_code(function: Function, level: str, compiled: Mapping[tuple[str, str], Compiled]) -> Function:
    """Returns the launches with what the compiler says of them."""
    launches = [launch_with_code(each, compiled[level, each.kernel]) for each in function.launches]
    return msgspec.structs.replace(function, launches=launches)


def launch_with_code(launch: Launch, kernel: Compiled) -> Launch:
    """Returns a launch with what the compiler says of its kernel."""
    maps = [
        msgspec.structs.replace(each, element=form.element, box=form.box, span=form.span)
        for each, form in zip(launch.maps, kernel.maps, strict=True)
    ]
    block = kernel.threads or launch.block
    return msgspec.structs.replace(
        launch, block=block, shared=kernel.shared, nulls=kernel.nulls, maps=maps, early=kernel.waits
    )
