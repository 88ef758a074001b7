"""Whether a group of ranks is the one that a program is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowerkit.errors import UsageError
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.runtimes.mesh.places import mesh_label, mesh_size

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.group import Group
    from lowerkit.runtimes.mesh.steps import CollectiveCalls


def ranks_of(path: Path, program: ProgramSpec) -> int:
    """Returns how many ranks run a program for a mesh.

    Raises:
        UsageError: LK8021, it has none.
    """
    if not program.mesh:
        raise UsageError("LK8021", f"{path.name} is for one rank", hint="compile the model with --mesh")
    return mesh_size(program.mesh)


def take_part(path: Path, program: ProgramSpec, group: Group | None) -> CollectiveCalls | None:
    """Returns what makes the collectives of ``program`` in ``group``; None for a program of one rank.

    Args:
        path: of the artifact, for messages.
        program: of the artifact.
        group: of as many ranks as its mesh has; this process is one of them.

    Raises:
        UsageError: LK8021, the group does not fit the mesh.
        CollectiveFault: LK8011, the group was aborted or closed.
    """
    if group is None and not program.mesh:
        return None
    if not program.mesh:
        assert group is not None, "just looked"
        raise UsageError(
            "LK8021",
            f"{path.name} is for one rank, and {_described(group)}",
            hint="load it without a group, or compile the model with --mesh",
        )
    size, label = mesh_size(program.mesh), mesh_label(program)
    if group is None:
        raise UsageError(
            "LK8021",
            f"{path.name} is for a mesh {label}",
            hint=f"start its ranks with `lowerkit run {path.name} --nproc {size}`, or `--sim {size}` in one process",
        )
    if size != group.size:
        raise UsageError(
            "LK8021",
            f"{path.name} is for a mesh {label}, and {_described(group)}",
            hint=f"start {size} ranks, or compile the model for the ranks that there are",
        )
    from lowerkit.runtimes import _collective  # sessions of one rank load nothing of groups

    if isinstance(group.native, _collective.Group):
        from lowerkit.runtimes.mesh.native_steps import NativeCalls

        return NativeCalls(program, group)
    from lowerkit.runtimes.mesh.engine_steps import EngineCalls

    return EngineCalls(program, group)


def _described(group: Group) -> str:
    return f"the group {group.name!r} has {group.size} ranks"
