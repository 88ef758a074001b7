"""A fused program to everything an artifact holds. It knows no target: it asks them.

Steps: get the code of every region and function, and lay out the step table; let each target link its code; describe it
all in a manifest.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lowerkit.codegen.described import manifest_of, program_spec, stem_of
from lowerkit.codegen.schedule import Schedule, build_schedule
from lowerkit.codegen.weight_table import StoredWeight, WeightTable
from lowerkit.passes.partition.accelerator import Placement
from lowerkit.runtimes.manifest import (
    HOST,
    Manifest,
    ProgramSpec,
)
from lowerkit.targets.asking import ask, require
from lowerkit.targets.ledger import Compile, LedgerEntry
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.registry import failed
from lowerkit.targets.target import LinkedCode, LinkSettings, Target

if TYPE_CHECKING:
    from lowerkit.program.program import Program


@dataclass(frozen=True)
class CompiledParts:
    """What an artifact is written from.

    Attributes:
        manifest: without entries and content id.
        code: by the entries that the programs of the manifest name.
        weights: the stored tensors of all programs, made when they are read.
        ledger: of the first program: which family took each region, and why others did not.
        seconds: time of each phase: plan, link.
        remarks: what a user should know.
    """

    manifest: Manifest
    code: Mapping[str, bytes]
    weights: Mapping[str, StoredWeight]
    ledger: list[LedgerEntry]
    seconds: dict[str, float]
    remarks: list[str] = field(default_factory=list[str])

    @property
    def program(self) -> ProgramSpec:
        """The first program."""
        return self.manifest.programs[0]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(weight.nbytes for weight in self.weights.values())

    @property
    def code_bytes(self) -> int:
        """Bytes of the code of all programs."""
        return sum(map(len, self.code.values()))


@dataclass(frozen=True)
class PlannedParts:
    """What is known of an artifact before its code is linked: all but the code."""

    manifest: Manifest
    weight_bytes: int
    ledger: list[LedgerEntry]
    code_bytes: int = 0

    @property
    def program(self) -> ProgramSpec:
        """The first program."""
        return self.manifest.programs[0]


def compile_parts(
    program: Program,
    hosts: Sequence[Target],
    accelerators: Sequence[Target],
    settings: LinkSettings,
    placements: Sequence[Placement] = (),
) -> CompiledParts:
    """Compiles one program; see :func:`compile_stages`."""
    return compile_stages([(program, placements)], hosts, accelerators, settings)


def compile_stages(
    stages: Sequence[tuple[Program, Sequence[Placement]]],
    hosts: Sequence[Target],
    accelerators: Sequence[Target],
    settings: LinkSettings,
) -> CompiledParts:
    """Compiles programs at stage ``fused`` that share their weights: the stages of a pipeline, or the only one.

    Args:
        stages: each with where its ops run, for the ledger of the artifact; they are not changed.
        hosts: each takes every region that is in no function of an accelerator, in a program of its own.
        accelerators: whose functions the program may hold.
        settings: how targets link.

    Raises:
        UnsupportedError: LK4001/LK4002, an op or a shape is not supported.
        CodegenError: LK5001/LK5002, code could not be made; LK5003, an accelerator's package failed.
    """
    weights = WeightTable(stages[0][0].weights)
    specs: list[ProgramSpec] = []
    code: dict[str, bytes] = {}
    remarks: dict[str, None] = {}
    ledgers: list[list[LedgerEntry]] = []
    seconds = {"plan": 0.0, "link": 0.0}
    for (program, placements), host in itertools.product(stages, hosts):
        started = time.perf_counter()
        targets = _by_memory(host, accelerators)
        schedule = _schedule(program, targets, weights, settings.on_progress)
        planned = time.perf_counter()
        linked: dict[str, LinkedCode] = {}
        for memory, target in targets.items():
            mine = [plan.code for plan in schedule.plans if plan.device == memory]
            if mine or memory == HOST:
                linked[memory] = _link(target, mine, settings)
        seconds["plan"] += planned - started
        seconds["link"] += time.perf_counter() - planned
        spec = program_spec(program, schedule, targets, linked, placements)
        specs.append(replace(spec, code=_store(code, spec, linked), **linked[HOST].fields))
        ledgers.append(schedule.ledger)
        remarks |= dict.fromkeys([*_slow_regions(schedule), *(r for each in linked.values() for r in each.remarks)])
    return CompiledParts(manifest_of(specs), code, weights.entries, ledgers[0], seconds, list(remarks))


def plan_stages(
    stages: Sequence[tuple[Program, Sequence[Placement]]],
    hosts: Sequence[Target],
    accelerators: Sequence[Target],
    on_progress: Callable[[str], None] | None = None,
) -> PlannedParts:
    """Plans programs at stage ``fused`` as :func:`compile_stages` does, and stops before code is linked.

    Nothing of the weights is read, so a program whose weights are only declared can be sized.

    Raises:
        UnsupportedError, CodegenError: as :func:`compile_stages`.
    """
    weights = WeightTable(stages[0][0].weights)
    specs: list[ProgramSpec] = []
    ledgers: list[list[LedgerEntry]] = []
    for (program, placements), host in itertools.product(stages, hosts):
        targets = _by_memory(host, accelerators)
        schedule = _schedule(program, targets, weights, on_progress)
        nothing = {memory: LinkedCode(b"", [0] * len(schedule.plans), [0] * len(schedule.plans)) for memory in targets}
        specs.append(program_spec(program, schedule, targets, nothing, placements))
        ledgers.append(schedule.ledger)
    return PlannedParts(manifest_of(specs), sum(weight.nbytes for weight in weights.entries.values()), ledgers[0])


def _store(code: dict[str, bytes], spec: ProgramSpec, linked: Mapping[str, LinkedCode]) -> dict[str, str]:
    """Gives the code of each memory an entry, equal code one and the same; returns the entries by memory."""
    entries: dict[str, str] = {}
    for memory, each in linked.items():
        if each.data:
            name = f"code/{'-'.join([*stem_of(spec), *([memory] if memory != HOST else [])])}.bin"
            same = (entry for entry, data in code.items() if data == each.data)
            entries[memory] = next(same, name)
            code[entries[memory]] = each.data
    return entries


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


def _schedule(
    program: Program,
    targets: Mapping[str, Target],
    weights: WeightTable,
    on_progress: Callable[[str], None] | None,
) -> Schedule:
    compilers = {memory: _compiler(target) for memory, target in targets.items()}
    return build_schedule(program.module, program.signature, weights, compilers, on_progress)


def _compiler(target: Target) -> Compile:
    def compile_one(region: RegionView) -> DeviceCode:
        answer: Any = ask(target, "compile", (DeviceCode, Refusal), region)
        if isinstance(answer, Refusal):
            raise failed(target.name, f"it accepts each op of {region.kind} and not the whole: {answer.reason}")
        require(target, isinstance(answer.family, str), "compile returned code without the name of a family")
        packed = [number for number in answer.packings if not region.operands[number].is_weight]
        require(target, not packed, f"compile packs operand {packed[:1]} of {region.kind}, which is no weight")
        apart = [number for number in answer.in_place.values() if not 0 <= number < len(region.operands)]
        require(target, not apart, f"compile changes operand {apart[:1]} of {region.kind}, which there is not")
        return answer

    return compile_one


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
