"""The part of a state that a rank has, where the ranks of a mesh share it: slices along dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lowerkit.runtimes.mesh.structs import MeshAxis, StateCut

Array = np.ndarray[Any, Any]


def whole_shape(own: Sequence[int], cuts: Sequence[StateCut]) -> tuple[int, ...]:
    """Returns the shape of a state of which a rank has a part of shape ``own``."""
    shape = list(own)
    for cut in cuts:
        shape[cut.dim] *= cut.parts
    return tuple(shape)


def own_slices(
    own: Sequence[int], cuts: Sequence[StateCut], mesh: Sequence[MeshAxis], place: Mapping[str, int]
) -> tuple[slice, ...]:
    """Returns where in the whole state the part of a rank lies.

    Args:
        own: the shape of the part.
        cuts: as a program states them.
        mesh: its axes.
        place: of the rank; the first one along an axis that is missing.
    """
    sizes = {axis.name: axis.size for axis in mesh}
    first = [0] * len(own)
    for cut in cuts:
        first[cut.dim] = first[cut.dim] * cut.parts + place.get(cut.axis, 0) * cut.parts // sizes[cut.axis]
    return tuple(slice(part * size, (part + 1) * size) for part, size in zip(first, own, strict=True))


def joined(
    parts: Iterable[tuple[Mapping[str, int], Array]], cuts: Sequence[StateCut], mesh: Sequence[MeshAxis]
) -> Array:
    """Returns a state whole, of the parts of all ranks.

    Args:
        parts: where each rank is, and what it has; of those with one part the last one counts.
        cuts, mesh: as for :func:`own_slices`.
    """
    whole: Array | None = None
    for place, part in parts:
        if whole is None:
            whole = np.empty(whole_shape(part.shape, cuts), part.dtype)
        whole[own_slices(part.shape, cuts, mesh, place)] = part
    assert whole is not None, "a mesh has ranks"
    return whole
