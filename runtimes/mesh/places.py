"""Where the ranks of a mesh are: row-major over its axes in their order, so that the last one varies fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lowerkit.runtimes.mesh.structs import MeshAxis

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import ProgramSpec


def mesh_size(mesh: Sequence[MeshAxis]) -> int:
    """Returns how many ranks a mesh has; 1 without axes."""
    return math.prod(axis.size for axis in mesh)


def mesh_label(program: ProgramSpec) -> str:
    """Returns how people write a mesh: ``dp=2,tp=4``; empty where the program has none."""
    return ",".join(f"{axis.name}={axis.size}" for axis in program.mesh)


def place_of(mesh: Sequence[MeshAxis], rank: int) -> dict[str, int]:
    """Returns where a rank is along each axis, in the order of the axes."""
    places: list[tuple[str, int]] = []
    for axis in reversed(mesh):
        rank, place = divmod(rank, max(axis.size, 1))  # what a manifest says may be anything yet
        places.append((axis.name, place))
    return dict(reversed(places))


def place_text(place: Mapping[str, int]) -> str:
    """Returns how people write where a rank is: ``dp=1,tp=0``."""
    return ",".join(f"{axis}={index}" for axis, index in place.items())


def rank_with_place(mesh: Sequence[MeshAxis], rank: int) -> str:
    """Returns how messages name a rank: ``rank 3 (dp=1,tp=1)``, and ``rank 3`` where there is one axis."""
    return f"rank {rank} ({place_text(place_of(mesh, rank))})" if len(mesh) > 1 else f"rank {rank}"


def rank_name(mesh: Sequence[MeshAxis], rank: int) -> str:
    """Returns how messages name a rank in full: as :func:`rank_with_place`, and of one axis ``rank 1 of tp=2``."""
    return rank_with_place(mesh, rank) + (f" of {mesh[0].name}={mesh[0].size}" if len(mesh) == 1 else "")


def ranks_along(mesh: Sequence[MeshAxis], axis: str, rank: int) -> list[int]:
    """Returns the ranks that are where ``rank`` is along all axes but one, in their order along that one."""
    number = next(number for number, entry in enumerate(mesh) if entry.name == axis)
    stride = mesh_size(mesh[number + 1 :])
    first = rank - place_of(mesh, rank)[axis] * stride
    return [first + index * stride for index in range(mesh[number].size)]


def runs_at(program: ProgramSpec, rank: int) -> bool:
    """Tells whether a rank of the mesh runs ``program``, or one of the same name that is for its place."""
    own = place_of(program.mesh, rank)
    return all(own.get(axis) == index for axis, index in program.place.items())


def part_number(mesh: Sequence[MeshAxis], label: str, place: Mapping[str, int]) -> tuple[int, int]:
    """Returns which part of a shared weight a rank has, and how many parts there are: row-major over the label's axes.

    Args:
        mesh: it.
        label: the axes whose ranks share the weight, ``dp,tp``.
        place: of the rank; the first one along an axis that is missing.

    Raises:
        ValueError: the label names what is no axis.
    """
    sizes = {axis.name: axis.size for axis in mesh}
    part, count = 0, 1
    for axis in label.split(","):
        if axis not in sizes:
            raise ValueError(f"{axis[:40]!r} is no axis of the mesh")
        part, count = part * sizes[axis] + place.get(axis, 0), count * sizes[axis]
    return part, count
