"""What a manifest says of a program: its steps and code, and what a runtime must be able to do."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lowerkit.codegen.offload import placement_entry
from lowerkit.codegen.schedule import Schedule
from lowerkit.dialect import DIALECT_VERSION
from lowerkit.passes.partition.accelerator import Placement
from lowerkit.runtimes.manifest import (
    CHECK_KERNEL,
    HOST,
    JUMP_KERNEL,
    DeviceSpec,
    GoldenSpec,
    KernelEntry,
    Manifest,
    ProgramSpec,
)
from lowerkit.runtimes.mesh.structs import FIRST_OPERATIONS
from lowerkit.targets.ledger import LedgerEntry
from lowerkit.targets.target import LinkedCode, Target
from lowerkit.version import __version__

if TYPE_CHECKING:
    from lowerkit.program.program import Program


def manifest_of(programs: list[ProgramSpec]) -> Manifest:
    """Returns the manifest of an artifact, without entries and content id."""
    features = dict.fromkeys(feature for program in programs for feature in _features(program))
    return Manifest(programs=programs, features=list(features), producer=_producer())


def program_spec(
    program: Program,
    schedule: Schedule,
    targets: Mapping[str, Target],
    code: Mapping[str, LinkedCode],
    placements: Sequence[Placement],
) -> ProgramSpec:
    """Returns what the manifest says of a program whose steps and code are there."""
    numbers = dict.fromkeys(targets, 0)
    kernels: list[KernelEntry] = []
    for number, plan in enumerate(schedule.plans):
        linked, place = code[plan.device], numbers[plan.device]
        numbers[plan.device] += 1
        symbol = f"{plan.code.family}_{number}"
        kernels.append(KernelEntry(linked.entries[place], symbol, plan.device, linked.sizes[place]))
    host = targets[HOST]
    spec = ProgramSpec(
        signature=replace(program.signature, guards=[*program.signature.guards, *schedule.guards]),
        buffers=schedule.buffers,
        steps=schedule.steps,
        kernels=kernels,
        target=host.name,
        level=host.level,
        requires=list(host.features()),
        mesh=program.mesh,
        place=program.place,
        devices=[DeviceSpec(name, target.level) for name, target in targets.items() if name != HOST and numbers[name]],
        state_initials=schedule.state_initials,
        state_cuts=program.state_cuts,
        output_tree=program.output_tree,
        input_tree=program.input_tree,
        metadata={
            "regions": [_region_entry(entry) for entry in schedule.ledger],
            **({"placements": list(map(placement_entry, placements))} if placements else {}),
        },
    )
    if any(program.place.values()):
        return spec  # all ranks give what those of the first stage give
    return replace(spec, golden=GoldenSpec(f"golden/{'-'.join(['outputs', *stem_of(spec)])}.safetensors"))


def _features(program: ProgramSpec) -> list[str]:
    """What a runtime must be able to do, beyond running steps in order."""
    needed = {
        "states": program.signature.states,
        "control_flow": any(step.kernel == JUMP_KERNEL for step in program.steps),
        "guards": program.signature.guards,
        "index_checks": any(step.kernel == CHECK_KERNEL for step in program.steps),
        "devices": program.devices,
        "mesh": program.mesh,
        "places": program.place,
        "state_cuts": program.state_cuts,
        "collectives": any(
            step.collective is not None and step.collective.operation not in FIRST_OPERATIONS for step in program.steps
        ),
        "device_states": any(buffer.kind == "state" and buffer.memory != HOST for buffer in program.buffers),
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


def stem_of(spec: ProgramSpec) -> list[str]:
    """Returns what the entries of a program are named by."""
    place = "".join(f"{axis}{index}" for axis, index in spec.place.items())
    return [re.sub(r"[^A-Za-z0-9_.]", "-", part) for part in (spec.name, spec.target, spec.level, place) if part]
