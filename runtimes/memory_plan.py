"""The arena: where each temporary buffer lies, planned from liveness. Used by the runtime and by the compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lowerkit.runtimes import _native
from lowerkit.runtimes.artifact_reader import WeightPlace
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import ProgramSpec

ARENA_ALIGNMENT = 64
DEVICE_ALIGNMENT = 256


def plan_memory(
    sizes: Sequence[int], first_steps: Sequence[int], last_steps: Sequence[int], alignment: int = ARENA_ALIGNMENT
) -> tuple[list[int], int]:
    """Places buffers that live from ``first_steps[i]`` to ``last_steps[i]`` (inclusive) into one arena.

    Greedy by size with best fit; deterministic. See ``runtimes/native/executor/memory_planner.h``.

    Returns:
        The offset of each buffer, a multiple of ``alignment``, and the size of the arena.

    Raises:
        ValueError: lengths differ, a size is negative, an interval is empty, or the total is beyond 2^62 bytes.
    """
    offsets, total = _native.plan_memory(
        np.asarray(sizes, np.int64), np.asarray(first_steps, np.int64), np.asarray(last_steps, np.int64), alignment
    )
    return offsets.tolist(), total


def arena_lives(program: ProgramSpec, roots: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Returns the first and last step, inclusive, at which each arena buffer matters, by its number.

    Args:
        program: its buffers and steps.
        roots: for each buffer the one that owns its memory.
    """
    lives: dict[int, tuple[int, int]] = {}

    def extend(buffer: int, step: int) -> None:
        root = roots[buffer]
        if program.buffers[root].kind == "arena":
            first, last = lives.get(root, (step, step))
            lives[root] = (min(first, step), max(last, step))

    for number, step in enumerate(program.steps):
        for buffer in step.buffers:
            extend(buffer, number)
    for number, buffer in enumerate(program.buffers):
        for stated in (buffer.first_step, buffer.last_step):
            if stated >= 0:
                extend(number, stated)
    return lives


def arena_bytes(program: ProgramSpec, dims: Mapping[str, int]) -> int:
    """Returns the size of the host's arena for these values of the symbolic dims, without loading the artifact.

    Raises:
        ArtifactError: LK8001, the manifest contradicts itself for these dims.
    """
    from lowerkit.runtimes.binding import bind_model

    ranks = {"": 1, **{axis.name: axis.size for axis in program.mesh}}
    places = {
        buffer.weight: WeightPlace(0, evaluate(buffer.size, dims) * ranks[buffer.shard])
        for buffer in program.buffers
        if buffer.weight
    }
    return bind_model(program, dims, places).arena_size
