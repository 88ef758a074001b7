"""What a manifest says of meshes: their axes, and the collectives that are steps. Part of ``manifest.py``."""

from __future__ import annotations

from typing import Literal

import msgspec

CollectiveOperation = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send", "receive"
]
WITH_ROOT = ("broadcast", "reduce")
MESSAGES = ("send", "receive")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
IN_PLACE = ("all_reduce", "broadcast", "receive")
"""The operations that have a root, a peer, or a reduction, and those whose input and output may be one buffer."""

FIRST_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
"""The operations that every runtime with the feature ``mesh`` knows; the others are the feature ``collectives``."""

CollectiveReduction = Literal["sum", "max", "min", "product"]
CollectivePhase = Literal["run", "start", "done"]


class MeshAxis(msgspec.Struct, frozen=True):
    """An axis of the mesh of ranks that one program serves: its name, and how many ranks lie along it."""

    name: str
    size: int


class StateCut(msgspec.Struct, frozen=True):
    """How the ranks along an axis share a state: each has one of ``parts`` slices of one size along a dimension.

    Where there are fewer slices than ranks, neighbours along the axis have the same one, as many for each slice.
    """

    axis: str
    dim: int
    parts: int


class CollectiveCall(msgspec.Struct, frozen=True):
    """What a collective step does with its buffers ``[input, output]``, in all ranks of an axis together.

    The counts follow from the bytes of the buffers. ``all_reduce``: both have as many, and may be one buffer.
    ``all_gather``: the output holds the ranks' inputs one behind the other. ``reduce_scatter``: the input holds a part
    for each rank, one behind the other, and the output is the rank's own part of the reduction. ``all_to_all``: both
    hold a part for each rank; part r of the input goes to rank r, and part r of the output comes from it.
    ``broadcast``: the root's input, in every output; it may be one buffer. ``reduce``: the reduction, in the output of
    the root; zeros in the others. ``send``: the input goes to the peer, which is to ``receive`` as many bytes; the
    output has none. ``receive``: what the peer sends, in the one buffer that is named twice. Two ranks' messages match
    in their order along an axis; ranks that send none to each other run other steps.

    Attributes:
        operation: what is done.
        axis: of the mesh.
        dtype: of the elements, a key of :data:`~lowerkit.runtimes.manifest.ITEM_SIZES`.
        reduction: how elements become one; of ``i1``, sum and max are or, product and min are and.
        phase: ``start`` begins it behind the caller, ``done`` with the same two buffers waits for it, ``run`` does
            both at once.
        root: whose input or output it is, by its place along the axis: of ``broadcast`` and ``reduce``.
        peer: who gets or sends it, likewise: of ``send`` and ``receive``; -1 of all others.
    """

    operation: CollectiveOperation
    axis: str
    dtype: str
    reduction: CollectiveReduction = "sum"
    phase: CollectivePhase = "run"
    root: int = 0
    peer: int = -1


def named(operation: str) -> str:
    """Returns how a sentence names an operation: ``an all_reduce``, ``a send``."""
    return f"{'an' if operation.startswith('a') else 'a'} {operation}"
