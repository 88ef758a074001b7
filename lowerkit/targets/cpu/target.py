"""The CPU target: kernels of the families, compiled to objects and linked to one image. It takes every op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from lowerkit.passes.base import Pass
from lowerkit.targets.capabilities import Capabilities, Throughput
from lowerkit.targets.cpu.families import select_kernel
from lowerkit.targets.cpu.levels import LEVELS, cpu_features, runs_on_host
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cpu.objects.compile_pool import compile_kernels
from lowerkit.targets.cpu.objects.linker import link_image
from lowerkit.targets.cpu.passes import host_passes
from lowerkit.targets.op_view import OpView
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.target import Accept, LinkedCode, LinkSettings, Target

_GIGA = 1e9


class CpuTarget(Target):
    """The host at one level: what no accelerator takes runs here."""

    name: ClassVar[str] = "cpu"
    levels: ClassVar[tuple[str, ...]] = LEVELS
    unit: ClassVar[Literal["function", "region"]] = "region"

    def __init__(self, level: str = "host") -> None:
        """Takes ``host`` (or nothing) for the widest level that this machine has.

        Raises:
            UnsupportedError: LK4003, there is no such level, or this machine is below the narrowest one.
        """
        self.cpu = cpu_features(level or "host")
        super().__init__(self.cpu.name)

    def capabilities(self, level: str) -> Capabilities:
        """Returns how fast two cores are; what they can do has no bounds to state."""
        lanes = cpu_features(level).lanes(32)
        return Capabilities(throughput=Throughput(4 * lanes * 2 * _GIGA, 10 * _GIGA, 1e15, 1e-6), open_extents=True)

    def accepts(self, op: OpView) -> Accept | Refusal:
        """Takes every op."""
        return Accept()

    def passes(self, stage: str) -> Sequence[Pass]:
        """Returns the CPU's own passes to ``stage``; see :func:`~lowerkit.targets.cpu.passes.host_passes`."""
        return host_passes(stage)

    def compile(self, function: RegionView) -> DeviceCode | Refusal:
        """Returns the kernel of the first family that takes the region.

        Raises:
            UnsupportedError: LK4001, an op has no lowering to linalg.
            CodegenError: LK5001, the body cannot be lowered.
        """
        return select_kernel(function, self.cpu)

    def link(self, codes: Sequence[DeviceCode], settings: LinkSettings) -> LinkedCode:
        """Compiles the kernels and links them.

        Raises:
            CodegenError: LK5001/LK5002, a kernel could not be made.
        """
        cache = KernelCache() if settings.use_cache else None
        objects = compile_kernels(codes, self.cpu, cache, settings.workers, on_progress=settings.on_progress)
        image = link_image(objects)
        return LinkedCode(
            image.data,
            image.entries,
            [0] * len(codes),
            {
                "imports": list(image.imports),
                "import_table_offset": image.import_table_offset if image.imports else 0,
                "import_sites": list(image.import_sites),
            },
            [cache.problem] if cache is not None and cache.problem else [],
        )

    def features(self) -> Sequence[str]:
        """Returns the LLVM names of the level's features."""
        return self.cpu.required

    def runs_here(self) -> bool:
        """Returns whether this machine can run code of the level."""
        return runs_on_host(self.level)
