"""Which program of an artifact this machine runs, and that it can, before any code of it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes import _native
from lowerkit.runtimes.manifest import MAIN_PROGRAM, Manifest, ProgramSpec
from lowerkit.runtimes.mesh.places import runs_at


def choose_program(
    manifest: Manifest, target: str | None = None, name: str = MAIN_PROGRAM, rank: int = 0
) -> ProgramSpec:
    """Returns the program that a session runs; enables AMX tiles where it uses them.

    Args:
        manifest: of the artifact; of one name, its programs stand best first.
        target: what the program was compiled for (``cpu:x86-64-v3``), or a part of that (``cpu``); None is the first
            one that this machine can run.
        name: of the program.
        rank: of a mesh; it runs a program for its place there.

    Raises:
        RuntimeFault: LK8005 there is no such program, LK8003 missing CPU features (all are named).
    """
    fitting = [program for program in programs_for(manifest, target, name) if runs_at(program, rank)]
    if not fitting:
        raise RuntimeFault("LK8005", f"the artifact holds no program {name!r} for rank {rank} of its mesh")
    missing = {program.label: missing_features(program) for program in fitting}
    for program in fitting:
        if not missing[program.label]:
            return program
    lacks = "; ".join(f"{label}: this CPU lacks {', '.join(features)}" for label, features in missing.items())
    raise RuntimeFault(
        "LK8003",
        f"the artifact was compiled for {lacks}",
        hint="compile the model again with --target cpu on this machine, or for a lower level: "
        "--target cpu:x86-64-v3; several levels make one file for all: --target cpu:x86-64-v3,x86-64-v4",
    )


def programs_for(manifest: Manifest, target: str | None, name: str | None = MAIN_PROGRAM) -> list[ProgramSpec]:
    """Returns the programs called ``name`` (None: of any name) that were compiled for ``target`` (None: for any).

    Raises:
        RuntimeFault: LK8005, there is none.
    """
    named = [program for program in manifest.programs if name in (None, program.name)]
    if not named:
        raise _unknown("program", str(name), list(dict.fromkeys(program.name for program in manifest.programs)))
    fitting = [program for program in named if target is None or _is_for(program, target)]
    if not fitting:
        raise _unknown("target", str(target), [program.label for program in named])
    return fitting


def missing_features(program: ProgramSpec) -> list[str]:
    """Returns what the code of ``program`` uses and this machine has not; empty where it can run."""
    if program.target != "cpu":
        return [f"the target {program.target!r}: this runtime runs 'cpu'"]
    needed = {feature.lstrip("+") for feature in program.requires}
    missing = sorted(needed - set(_native.cpu_features()))
    if not missing and any(feature.startswith("amx-") for feature in needed) and not _native.request_amx():
        return ["amx-tile (Linux refuses the tile registers to this process)"]
    return missing


def _is_for(program: ProgramSpec, target: str) -> bool:
    """Whether each part of ``target`` names a part of what the program was compiled for."""
    parts = program.label.split("+")
    return all(any(have == part or have.partition(":")[0] == part for have in parts) for part in target.split("+"))


def _unknown(what: str, given: str, known: Sequence[str]) -> RuntimeFault:
    asked = f"program {given!r}" if what == "program" else f"program for the {what} {given!r}"
    near = get_close_matches(given, known, n=1)
    return RuntimeFault(
        "LK8005",
        f"the artifact has no {asked}; it has {', '.join(known)}",
        hint=f"did you mean {near[0]}?" if near else "name one of these, or compile the model again",
    )
