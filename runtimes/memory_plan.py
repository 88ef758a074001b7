"""The arena: where each temporary buffer lies, planned from liveness. Used by the runtime and by the compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lowerkit.runtimes import _native
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import JUMP_KERNEL, ProgramSpec
from lowerkit.runtimes.mapping.weight_places import WeightKey, WeightPlace

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


def plan_problems(program: ProgramSpec, dims: Mapping[str, int]) -> list[str]:
    """Returns a line for each two values that lie at the same bytes of an arena while both are needed.

    How long a value is needed is read off the steps and jumps here, apart from what the planner is told: from the first
    step that names its buffer to the last one; what is made before a loop and named inside, to the end of the loop.

    Args:
        program: it.
        dims: the value of each dim; where a guard does not hold for them nothing runs, and there is no plan.

    Raises:
        ArtifactError: LK8001, the manifest contradicts itself for these dims.
    """
    from lowerkit.runtimes.binding import Binder
    from lowerkit.runtimes.conditions import holds
    from lowerkit.runtimes.on_device.values import root_of, step_text
    from lowerkit.runtimes.validation import contradictions

    with contradictions(dims):
        if not all(holds(guard.condition, dims) for guard in program.signature.guards):
            return []
        binder = Binder(program, dims, weight_places(program, dims), None, None, None)
        places, _ = binder.places()
    buffers, steps = program.buffers, program.steps
    lives = _needed(program, [root_of(buffers, number) for number in range(len(buffers))])
    problems: list[str] = []
    live: list[int] = []  # of the values that began, those that are needed still
    for root in sorted(lives, key=lambda root: lives[root]):
        first, _ = lives[root]
        live = [other for other in live if lives[other][1] >= first]
        base, begin = places[root]
        for other in live:
            its_base, its_begin = places[other]
            if base == its_base and begin < its_begin + binder.sizes[other] and its_begin < begin + binder.sizes[root]:
                maker, last = (step_text(number, steps[number]) for number in lives[other])
                writer = step_text(first, steps[first])
                problems.append(f"{writer} writes over the value of {maker}, which is needed until {last}")
        live.append(root)
    return problems


def _needed(program: ProgramSpec, roots: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Returns the first and last step at which each arena buffer is needed, as :func:`plan_problems` says."""
    lives: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(program.steps):
        for root in {roots[buffer] for buffer in step.buffers}:
            if program.buffers[root].kind == "arena":
                lives[root] = (lives.get(root, (number, number))[0], number)
    loops = [
        (step.target, number)
        for number, step in enumerate(program.steps)
        if step.kernel == JUMP_KERNEL and step.target <= number
    ]
    for begin, end in loops:  # a loop ends at its jump back, so inner ones come first
        for root, (first, last) in lives.items():
            if first < begin <= last < end:
                lives[root] = (first, end)
    return lives


def arena_bytes(program: ProgramSpec, dims: Mapping[str, int]) -> int:
    """Returns the size of the host's arena for these values of the symbolic dims, without loading the artifact.

    Raises:
        ArtifactError: LK8001, the manifest contradicts itself for these dims.
    """
    from lowerkit.runtimes.binding import bind_model

    return bind_model(program, dims, weight_places(program, dims)).arena_size


def weight_places(program: ProgramSpec, dims: Mapping[str, int]) -> dict[WeightKey, WeightPlace]:
    """Places of one rank's weights to measure with, without the artifact that holds them."""
    return {
        (buffer.weight, buffer.shard): WeightPlace(0, evaluate(buffer.size, dims))
        for buffer in program.buffers
        if buffer.weight
    }
