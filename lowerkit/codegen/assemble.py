"""A fused program to everything an artifact holds. It knows no target: it asks them.

Steps: get the code of every region and function, and lay out the step table; let each target link its code; describe it
all in a manifest.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lowerkit.codegen.offload import placement_entry
from lowerkit.codegen.schedule import Schedule, build_schedule
from lowerkit.codegen.weight_table import StoredWeight
from lowerkit.dialect import DIALECT_VERSION
from lowerkit.passes.partition.accelerator import Placement
from lowerkit.runtimes.manifest import CHECK_KERNEL, HOST, JUMP_KERNEL, DeviceSpec, KernelEntry, Manifest
from lowerkit.targets.asking import ask, require
from lowerkit.targets.ledger import Compile, LedgerEntry
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.registry import failed
from lowerkit.targets.target import LinkedCode, LinkSettings, Target
from lowerkit.version import __version__

if TYPE_CHECKING:
    from lowerkit.program.program import Program


@dataclass(frozen=True)
class CompiledParts:
    """What an artifact is written from.

    Attributes:
        manifest: without entries and content id.
        code: of the host, and of each accelerator by its name.
        weights: the stored tensors, made when they are read.
        ledger: which family took each region, and why others did not.
        seconds: time of each phase: plan, link.
        remarks: what a user should know.
    """

    manifest: Manifest
    code: Mapping[str, LinkedCode]
    weights: Mapping[str, StoredWeight]
    ledger: list[LedgerEntry]
    seconds: dict[str, float]
    remarks: list[str] = field(default_factory=list[str])

    @property
    def weight_bytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(weight.nbytes for weight in self.weights.values())


@dataclass(frozen=True)
class PlannedParts:
    """What is known of an artifact before its code is linked: all but the code."""

    manifest: Manifest
    weight_bytes: int
    ledger: list[LedgerEntry]


def compile_parts(
    program: Program,
    host: Target,
    accelerators: Sequence[Target],
    settings: LinkSettings,
    placements: Sequence[Placement] = (),
) -> CompiledParts:
    """Compiles a program at stage ``fused``.

    Args:
        program: it is not changed.
        host: takes every region that is in no function of an accelerator.
        accelerators: whose functions the program may hold.
        settings: how targets link.
        placements: where each op runs, for the ledger of the artifact.

    Raises:
        UnsupportedError: LK4001/LK4002, an op or a shape is not supported.
        CodegenError: LK5001/LK5002, code could not be made; LK5003, an accelerator's package failed.
    """
    started = time.perf_counter()
    targets = _by_memory(host, accelerators)
    schedule = _schedule(program, targets, settings.on_progress)
    planned = time.perf_counter()
    code: dict[str, LinkedCode] = {}
    for memory, target in targets.items():
        mine = [plan.code for plan in schedule.plans if plan.device == memory]
        if mine or memory == HOST:
            code[memory] = _link(target, mine, settings)
    linked = time.perf_counter()
    remarks = [remark for each in code.values() for remark in each.remarks]
    return CompiledParts(
        replace(_manifest(program, schedule, targets, code, placements), **code[HOST].fields),
        code,
        schedule.weights,
        schedule.ledger,
        {"plan": planned - started, "link": linked - planned},
        [*_slow_regions(schedule), *remarks],
    )


def plan_parts(
    program: Program,
    host: Target,
    accelerators: Sequence[Target],
    placements: Sequence[Placement] = (),
    on_progress: Callable[[str], None] | None = None,
) -> PlannedParts:
    """Plans a program at stage ``fused`` as :func:`compile_parts` does, and stops before code is linked.

    Nothing of the weights is read, so a program whose weights are only declared can be sized.

    Raises:
        UnsupportedError, CodegenError: as :func:`compile_parts`.
    """
    targets = _by_memory(host, accelerators)
    schedule = _schedule(program, targets, on_progress)
    nothing = {memory: LinkedCode(b"", [0] * len(schedule.plans), [0] * len(schedule.plans)) for memory in targets}
    manifest = _manifest(program, schedule, targets, nothing, placements)
    return PlannedParts(manifest, sum(weight.nbytes for weight in schedule.weights.values()), schedule.ledger)


def _link(target: Target, codes: list[DeviceCode], settings: LinkSettings) -> LinkedCode:
    linked = ask(target, "link", LinkedCode, codes, settings)
    data: Any = linked.data
    require(target, isinstance(data, bytes), f"link returned {type(data).__name__} as data, not bytes")
    places = len(linked.entries) == len(linked.sizes) == len(codes)
    require(target, places, f"link returned {len(linked.entries)} places for {len(codes)} codes")
    inside = all(
        0 <= at <= at + size <= len(linked.data) for at, size in zip(linked.entries, linked.sizes, strict=True)
    )
    require(target, inside, f"link returned places outside of its {len(linked.data)} bytes")
    return linked


def _by_memory(host: Target, accelerators: Sequence[Target]) -> dict[str, Target]:
    return {HOST: host, **{target.name: target for target in accelerators}}


def _schedule(program: Program, targets: Mapping[str, Target], on_progress: Callable[[str], None] | None) -> Schedule:
    compilers = {memory: _compiler(target) for memory, target in targets.items()}
    return build_schedule(program.module, program.signature, program.weights, compilers, on_progress)


def _compiler(target: Target) -> Compile:
    def compile_one(region: RegionView) -> DeviceCode:
        answer: Any = ask(target, "compile", (DeviceCode, Refusal), region)
        if isinstance(answer, Refusal):
            raise failed(target.name, f"it accepts each op of {region.kind} and not the whole: {answer.reason}")
        require(target, isinstance(answer.family, str), "compile returned code without the name of a family")
        packed = [number for number in answer.packings if not region.operands[number].is_weight]
        require(target, not packed, f"compile packs operand {packed[:1]} of {region.kind}, which is no weight")
        return answer

    return compile_one


def _manifest(
    program: Program,
    schedule: Schedule,
    targets: Mapping[str, Target],
    code: Mapping[str, LinkedCode],
    placements: Sequence[Placement],
) -> Manifest:
    numbers = dict.fromkeys(targets, 0)
    kernels: list[KernelEntry] = []
    for number, plan in enumerate(schedule.plans):
        linked, place = code[plan.device], numbers[plan.device]
        numbers[plan.device] += 1
        symbol = f"{plan.code.family}_{number}"
        kernels.append(KernelEntry(linked.entries[place], symbol, plan.device, linked.sizes[place]))
    host = targets[HOST]
    return Manifest(
        signature=replace(program.signature, guards=[*program.signature.guards, *schedule.guards]),
        buffers=schedule.buffers,
        steps=schedule.steps,
        kernels=kernels,
        features=_features(program, schedule),
        target=host.name,
        cpu=host.level,
        cpu_features=list(host.features()),
        devices=[DeviceSpec(name, target.level) for name, target in targets.items() if name != HOST and numbers[name]],
        producer=_producer(),
        state_initials=schedule.state_initials,
        output_tree=program.output_tree,
        input_tree=program.input_tree,
        metadata={
            "regions": [_region_entry(entry) for entry in schedule.ledger],
            **({"placements": list(map(placement_entry, placements))} if placements else {}),
        },
    )


def _features(program: Program, schedule: Schedule) -> list[str]:
    """What a runtime must be able to do, beyond running steps in order."""
    jumps = any(step.kernel == JUMP_KERNEL for step in schedule.steps)
    guards = [*program.signature.guards, *schedule.guards]
    checks = any(step.kernel == CHECK_KERNEL for step in schedule.steps)
    needed = {
        "states": program.signature.states,
        "control_flow": jumps,
        "guards": guards,
        "index_checks": checks,
        "devices": any(plan.device != HOST for plan in schedule.plans),
    }
    return [feature for feature, present in needed.items() if present]


def _producer() -> dict[str, str]:
    return {
        "lowerkit": __version__,
        "dialect": DIALECT_VERSION,
        "llvmlite": importlib.metadata.version("llvmlite"),
        "torch-mlir": importlib.metadata.version("torch-mlir"),
    }


def _region_entry(entry: LedgerEntry) -> dict[str, object]:
    return {
        "step": entry.step,
        "family": entry.family,
        "note": entry.note,
        "refusals": [list(refusal) for refusal in entry.refusals],
        **({"target": entry.target} if entry.target else {}),
    }


def _slow_regions(schedule: Schedule) -> list[str]:
    """Anchored regions without a family of their own."""
    slow: dict[str, list[LedgerEntry]] = {}
    for entry in schedule.ledger:
        if entry.family == "generic" and entry.kind not in ("generic", "elementwise"):
            slow.setdefault(entry.kind, []).append(entry)
    return [
        f"{len(entries)} {kind} region(s) run as plain loops, the first at {entries[0].location or entries[0].name}"
        for kind, entries in slow.items()
    ]
