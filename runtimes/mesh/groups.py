"""The groups that a rank of a mesh is in: one with all ranks, and for each axis one with the ranks along it.

A group of an axis numbers its ranks by their place along it. What the native side says of such a group is told in the
numbers of the mesh, since nobody else knows the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.failures import from_native
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.work import native_group
from lowerkit.runtimes.mesh.arena import MeshArena
from lowerkit.runtimes.mesh.places import place_of, place_text, rank_name, ranks_along
from lowerkit.runtimes.mesh.structs import MeshAxis

WORLD = ""
"""Stands for the group of all ranks, among those of the axes."""

_RANKS = re.compile(r"\branks? (\d+(?:, \d+)*)\b(?! \([a-z][a-z0-9_-]*=\d)(?! of [a-z][a-z0-9_-]*=\d)")


class AxisGroups:
    """The groups of one rank.

    Attributes:
        world: of all ranks.
        mesh: its axes.
        by_axis: the group along each axis: the world where the axis has all ranks.
    """

    def __init__(self, world: Group, mesh: Sequence[MeshAxis], number: int = 0) -> None:
        """Connects the ranks along each axis; all ranks of the world call it.

        Args:
            world: has as many ranks as the mesh. It aborts and closes the other groups with itself.
            mesh: its axes.
            number: how many meshes the world has served before.

        Raises:
            LowerkitError: as :meth:`Group.join`.
        """
        self.world, self.mesh = world, tuple(mesh)
        own = place_of(mesh, world.rank)
        self._members: dict[str, list[int]] = {WORLD: list(range(world.size))}
        self.by_axis: dict[str, Group] = {}
        for axis in mesh:
            members = ranks_along(mesh, axis.name, world.rank)
            others = place_text({name: index for name, index in own.items() if name != axis.name})
            name = "/".join([world.name, *([str(number)] if number else []), f"{axis.name}@{others}"])
            whole = len(members) == world.size
            self._members[axis.name] = members
            self.by_axis[axis.name] = world if whole else world.subgroup(name, members)
        self._arena = 0

    def share(self, arena: MeshArena) -> None:
        """Lets collectives along every axis find their buffers in the arena of the world.

        Raises:
            CollectiveFault: LK8011, a group was closed.
        """
        if self._arena == arena.shared:
            return
        self._arena = arena.shared
        whole = native_group(self.world.native, "arenas")
        try:
            for axis, group in self.by_axis.items():
                if group is not self.world and len(group.local_ranks) > 1:
                    native_group(group.native, "arenas").share_arena(whole, self._members[axis])
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error

    def told(self, axis: str, message: str) -> str:
        """Returns what the native side said of the group along ``axis`` with the ranks as the mesh numbers them.

        What it says of a mesh of one axis is right as it is. Ranks that were told already name their place.
        """
        if len(self.mesh) == 1:
            return message
        members = self._members[axis]

        def name(match: re.Match[str]) -> str:
            numbers = [int(number) for number in match[1].split(", ")]
            if max(numbers) >= len(members):
                return match[0]  # of something else
            return ", ".join(rank_name(self.mesh, members[number]) for number in numbers)

        return _RANKS.sub(name, message)


def axis_groups(world: Group, mesh: Sequence[MeshAxis]) -> AxisGroups:
    """Returns the groups of a mesh in a world, the same ones for all sessions there.

    Raises:
        LowerkitError: as :class:`AxisGroups`.
    """
    known: dict[tuple[MeshAxis, ...], AxisGroups] = world.companions.setdefault(AxisGroups, {})
    if tuple(mesh) not in known:
        known[tuple(mesh)] = AxisGroups(world, mesh, len(known))
    return known[tuple(mesh)]
