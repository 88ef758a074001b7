"""The CPU target: a fused program to everything an artifact holds.

Steps: choose kernels and lay out the step table; compile the kernels; link them; describe it all in a manifest.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lowerkit.codegen.schedule import Schedule, build_schedule
from lowerkit.codegen.weight_table import StoredWeight
from lowerkit.runtimes.manifest import CHECK_KERNEL, JUMP_KERNEL, KernelEntry, Manifest
from lowerkit.targets.cpu.families import select_kernel
from lowerkit.targets.cpu.levels import CpuFeatures, cpu_features
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cpu.objects.compile_pool import CompileReport, compile_kernels
from lowerkit.targets.cpu.objects.linker import CodeImage, link_image
from lowerkit.targets.ledger import LedgerEntry
from lowerkit.version import __version__

if TYPE_CHECKING:
    from lowerkit.program.program import Program


@dataclass(frozen=True)
class CompiledParts:
    """What an artifact is written from.

    Attributes:
        manifest: without entries and content id.
        image: the code.
        weights: the stored tensors, made when they are read.
        ledger: which family took each region, and why others did not.
        report: what was compiled, what came from the cache.
        seconds: time of each phase: plan, compile, link.
        remarks: what a user should know.
    """

    manifest: Manifest
    image: CodeImage
    weights: Mapping[str, StoredWeight]
    ledger: list[LedgerEntry]
    report: CompileReport
    seconds: dict[str, float]
    remarks: list[str] = field(default_factory=list[str])

    @property
    def weight_bytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(weight.nbytes for weight in self.weights.values())


@dataclass(frozen=True)
class PlannedParts:
    """What is known of an artifact before its kernels are compiled: all but the code."""

    manifest: Manifest
    weight_bytes: int
    ledger: list[LedgerEntry]


@dataclass(frozen=True)
class CpuTarget:
    """Compiles for a CPU level.

    Attributes:
        cpu: ``host`` or the name of a level.
        workers: processes that compile kernels; None is one for each core this process may use.
        use_cache: look kernels up on disk, and keep them there.
        cache: the cache to use; None is the user's own.
    """

    cpu: str = "host"
    workers: int | None = None
    use_cache: bool = True
    cache: KernelCache | None = None

    def compile(self, program: Program, on_progress: Callable[[str], None] | None = None) -> CompiledParts:
        """Compiles a program at stage ``fused``.

        Raises:
            UnsupportedError: LK4001/LK4002/LK4003, an op, a shape or the CPU level is not supported.
            CodegenError: LK5001/LK5002, a kernel could not be made.
        """
        cpu = cpu_features(self.cpu)
        started = time.perf_counter()
        schedule = self._schedule(program, cpu, on_progress)
        planned = time.perf_counter()
        cache = (self.cache or KernelCache()) if self.use_cache else None
        report = CompileReport()
        objects = compile_kernels(schedule.plans, cpu, cache, self.workers, report=report, on_progress=on_progress)
        compiled = time.perf_counter()
        image = link_image(objects)
        linked = time.perf_counter()
        manifest = _manifest(program, schedule, cpu, image.entries)
        manifest = replace(
            manifest,
            imports=list(image.imports),
            import_table_offset=image.import_table_offset if image.imports else 0,
            import_sites=list(image.import_sites),
        )
        seconds = {"plan": planned - started, "compile": compiled - planned, "link": linked - compiled}
        return CompiledParts(
            manifest, image, schedule.weights, schedule.ledger, report, seconds, _remarks(schedule, cache)
        )

    def plan(self, program: Program, on_progress: Callable[[str], None] | None = None) -> PlannedParts:
        """Plans a program at stage ``fused`` as :meth:`compile` does, and stops before its kernels are compiled.

        Nothing of the weights is read, so a program whose weights are only declared can be sized.

        Raises:
            UnsupportedError, CodegenError: as :meth:`compile`.
        """
        cpu = cpu_features(self.cpu)
        schedule = self._schedule(program, cpu, on_progress)
        manifest = _manifest(program, schedule, cpu, [0] * len(schedule.plans))
        return PlannedParts(manifest, sum(weight.nbytes for weight in schedule.weights.values()), schedule.ledger)

    @staticmethod
    def _schedule(program: Program, cpu: CpuFeatures, on_progress: Callable[[str], None] | None) -> Schedule:
        return build_schedule(program.module, program.signature, program.weights, select_kernel, cpu, on_progress)


def _manifest(program: Program, schedule: Schedule, cpu: CpuFeatures, entries: Sequence[int]) -> Manifest:
    return Manifest(
        signature=replace(program.signature, guards=[*program.signature.guards, *schedule.guards]),
        buffers=schedule.buffers,
        steps=schedule.steps,
        kernels=[
            KernelEntry(offset, f"{plan.family}_{number}")
            for number, (offset, plan) in enumerate(zip(entries, schedule.plans, strict=True))
        ],
        features=_features(program, schedule),
        target="cpu",
        cpu=cpu.name,
        cpu_features=list(cpu.required),
        producer=_producer(),
        state_initials=schedule.state_initials,
        output_tree=program.output_tree,
        input_tree=program.input_tree,
        metadata={"regions": [_region_entry(entry) for entry in schedule.ledger]},
    )


def _features(program: Program, schedule: Schedule) -> list[str]:
    """What a runtime must be able to do, beyond running steps in order."""
    jumps = any(step.kernel == JUMP_KERNEL for step in schedule.steps)
    guards = [*program.signature.guards, *schedule.guards]
    checks = any(step.kernel == CHECK_KERNEL for step in schedule.steps)
    needed = {"states": program.signature.states, "control_flow": jumps, "guards": guards, "index_checks": checks}
    return [feature for feature, present in needed.items() if present]


def _producer() -> dict[str, str]:
    return {
        "lowerkit": __version__,
        "llvmlite": importlib.metadata.version("llvmlite"),
        "torch-mlir": importlib.metadata.version("torch-mlir"),
    }


def _region_entry(entry: LedgerEntry) -> dict[str, object]:
    return {
        "step": entry.step,
        "family": entry.family,
        "note": entry.note,
        "refusals": [list(refusal) for refusal in entry.refusals],
    }


def _remarks(schedule: Schedule, cache: KernelCache | None) -> list[str]:
    """What a user should know: anchored regions without a family of their own, a cache that cannot be written."""
    slow: dict[str, list[LedgerEntry]] = {}
    for entry in schedule.ledger:
        if entry.family == "generic" and entry.kind not in ("generic", "elementwise"):
            slow.setdefault(entry.kind, []).append(entry)
    remarks = [
        f"{len(entries)} {kind} region(s) run as plain loops, the first at {entries[0].location or entries[0].name}"
        for kind, entries in slow.items()
    ]
    if cache is not None and cache.problem:
        remarks.append(cache.problem)
    return remarks
