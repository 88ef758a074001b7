"""Planned regions to the image of an artifact: each kernel compiled once, all of them one module."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import msgspec

from lowerkit.runtimes.cuda.image import pack
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cuda.planner.plan import PlannedRegion
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.ptx.compile import compile_to_ptx
from lowerkit.targets.plan import DeviceCode, LinkedCode, LinkSettings

_HEADER = re.compile(r"^(?://.*\n|\s*\n|\.version .*\n|\.target .*\n|\.address_size .*\n)*")


def link_regions(codes: Sequence[DeviceCode], level: str, settings: LinkSettings) -> LinkedCode:
    """Compiles the kernels of all regions and packs them.

    Raises:
        CodegenError: LK5001, a kernel could not be made, or ptxas does not take it.
    """
    regions = [msgspec.json.decode(code.payload, type=PlannedRegion) for code in codes]
    kernels: dict[str, str] = {}
    for region in regions:
        kernels.update(region.kernels)
    cache = KernelCache() if settings.use_cache else None
    modules = compile_to_ptx(kernels, level, settings, cache)
    ptx = join_modules(modules)
    remarks = [cache.problem] if cache is not None and cache.problem else []
    assembler = ptxas.find_ptxas()
    cubin = b""
    if not ptx:
        pass
    elif assembler is None:
        remarks.append("ptxas was not found: the image holds PTX alone, which the driver compiles when it is loaded")
    elif not ptxas.knows(assembler, level):
        remarks.append(f"ptxas {ptxas.version(assembler)} does not know {level}: the image holds PTX alone")
    else:
        cubin = _assembled(assembler, ptx, level, cache)
    data, starts = pack([region.function for region in regions], level, ptx.encode(), cubin)
    return LinkedCode(data, starts, [len(data) - start for start in starts], remarks=remarks)


def join_modules(modules: Mapping[str, str]) -> str:
    """Returns one module of many for one level; ``""`` of none."""
    names = sorted(modules)
    if not names:
        return ""
    header = _HEADER.match(modules[names[0]])
    assert header is not None, "it matches nothing at least"
    lines = [line for line in header[0].splitlines() if line.startswith(".")]
    bodies = [_HEADER.sub("", modules[name], count=1).strip("\n") for name in names]
    return "\n".join([*lines, "", "\n\n".join(bodies), ""])


def _assembled(assembler: ptxas.Path, ptx: str, level: str, cache: KernelCache | None) -> bytes:
    parts = "\0".join([ptx, level, ptxas.version(assembler), str(assembler.stat().st_size)])
    key = hashlib.sha256(parts.encode()).hexdigest()
    found = cache.get(key) if cache is not None else None
    if found is not None:
        return found
    cubin = ptxas.assemble(assembler, ptx, level)
    if cache is not None:
        cache.put(key, cubin)
    return cubin
