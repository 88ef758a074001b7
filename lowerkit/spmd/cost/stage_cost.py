"""What a rank of one stage of a mesh holds, and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.spmd.cost.machine import DeviceModel, Links
from lowerkit.spmd.cost.memory import RankMemory, memory_of
from lowerkit.spmd.cost.planned_steps import Piece, pieces_of


@dataclass(frozen=True)
class StageCost:
    """What a rank of one stage holds, and its steps in order."""

    memory: RankMemory
    pieces: list[Piece]


def cost_of_stage(program: ProgramSpec, dims: Mapping[str, int], device: DeviceModel, links: Links) -> StageCost:
    """Returns what a rank takes that runs ``program``, for the values ``dims`` of the symbolic dims.

    Raises:
        ArtifactError: LK8001, the program contradicts itself for these dims.
    """
    return StageCost(memory_of(program, dims), pieces_of(program, dims, device, links))
