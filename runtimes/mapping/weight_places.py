"""Which bytes of a stored weight a rank uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.runtimes.mesh.places import part_number

WeightKey = tuple[str, str]
"""A weight as a buffer names it: its name, and the axes of the mesh whose ranks share it."""


@dataclass(frozen=True)
class WeightPlace:
    """Where a weight lies: ``size`` bytes, ``offset`` bytes behind what the context says."""

    offset: int
    size: int


def own_part(whole: WeightPlace, axes: str, program: ProgramSpec, ranks: Mapping[str, int]) -> WeightPlace:
    """Returns the part of a stored weight that this rank uses: one of as many as there are ranks along ``axes``.

    Args:
        whole: the stored tensor, whose parts lie row-major over the axes.
        axes: of the mesh, ``dp,tp``; ``""`` where every rank uses the whole.
        program: has the mesh.
        ranks: place of this process along each axis; the first one where an axis is missing.

    Raises:
        ValueError: the tensor cannot be cut into so many parts.
    """
    if not axes:
        return whole
    part, count = part_number(program.mesh, axes, ranks)
    if whole.size % count:
        raise ValueError(f"a weight of {whole.size} bytes is shared by the {count} ranks of {axes!r}")
    size = whole.size // count
    return WeightPlace(whole.offset + part * size, size)
