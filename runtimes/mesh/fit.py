"""Whether a group of ranks is the one that a program is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowerkit.errors import UsageError
from lowerkit.runtimes.manifest import ProgramSpec

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.group import Group
    from lowerkit.runtimes.mesh.steps import CollectiveCalls


def mesh_label(program: ProgramSpec) -> str:
    """Returns how people write a mesh: ``tp=2``; empty where the program has none."""
    return ",".join(f"{axis.name}={axis.size}" for axis in program.mesh)


def take_part(path: Path, program: ProgramSpec, group: Group | None) -> CollectiveCalls | None:
    """Returns what makes the collectives of ``program`` in ``group``; None for a program of one rank.

    Args:
        path: of the artifact, for messages.
        program: of the artifact.
        group: of as many ranks as its mesh has; this process is one of them.

    Raises:
        UsageError: LK8021, the group does not fit the mesh; LK1010, its engine runs no compiled programs.
        CollectiveFault: LK8011, the group was aborted or closed.
    """
    label = mesh_label(program)
    if group is None and not label:
        return None
    if not label or group is None or len(program.mesh) != 1 or program.mesh[0].size != group.size:
        raise _misfit(path.name, program, label, group)
    from lowerkit.runtimes.mesh.steps import CollectiveCalls  # sessions of one rank load nothing of groups

    return CollectiveCalls(program, group)


def _misfit(name: str, program: ProgramSpec, label: str, group: Group | None) -> UsageError:
    given = "" if group is None else f"the group {group.name!r} has {group.size} ranks"
    if not label:
        return UsageError(
            "LK8021",
            f"{name} is for one rank, and {given}",
            hint="load it without a group, or compile the model with --mesh",
        )
    if len(program.mesh) != 1:
        return UsageError("LK8021", f"{name} is for a mesh {label}; meshes of one axis can be run")
    size = program.mesh[0].size
    if not given:
        return UsageError(
            "LK8021",
            f"{name} is for a mesh {label}",
            hint=f"start its ranks with `lowerkit run {name} --nproc {size}`, or `--sim {size}` in one process",
        )
    return UsageError(
        "LK8021",
        f"{name} is for a mesh {label}, and {given}",
        hint=f"start {size} ranks, or compile the model for the ranks that there are",
    )
