"""What a manifest says of meshes: their axes, and the collectives that are steps. Part of ``manifest.py``."""

from __future__ import annotations

from typing import Literal

import msgspec

CollectiveOperation = Literal["all_reduce", "all_gather", "reduce_scatter"]
CollectiveReduction = Literal["sum", "max", "min", "product"]
CollectivePhase = Literal["run", "start", "done"]


class MeshAxis(msgspec.Struct, frozen=True):
    """An axis of the mesh of ranks that one program serves: its name, and how many ranks lie along it."""

    name: str
    size: int


class CollectiveCall(msgspec.Struct, frozen=True):
    """What a collective step does with its buffers ``[input, output]``, in all ranks of an axis together.

    The counts follow from the bytes of the buffers. ``all_reduce``: both have as many, and may be one buffer.
    ``all_gather``: the output holds the ranks' inputs one behind the other. ``reduce_scatter``: the input holds a part
    for each rank, one behind the other, and the output is the rank's own part of the reduction.

    Attributes:
        operation: what is done.
        axis: of the mesh.
        dtype: of the elements, a key of :data:`~lowerkit.runtimes.manifest.ITEM_SIZES`.
        reduction: how elements become one; of ``i1``, sum and max are or, product and min are and.
        phase: ``start`` begins it behind the caller, ``done`` with the same two buffers waits for it, ``run`` does
            both at once.
    """

    operation: CollectiveOperation
    axis: str
    dtype: str
    reduction: CollectiveReduction = "sum"
    phase: CollectivePhase = "run"
