"""Collectives that run behind the steps between their start and their done, and what those steps must leave alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from lowerkit.runtimes.manifest import COLLECTIVE_KERNEL, COPY_KERNEL, JUMP_KERNEL, CollectiveCall, Step

Overlap = Callable[[int, int], bool]
"""Whether two buffers, by number, share bytes."""


def phase_of(step: Step) -> str:
    """Returns the phase of a collective step; ``""`` for all others."""
    return step.collective.phase if step.kernel == COLLECTIVE_KERNEL and step.collective is not None else ""


def pair_up(steps: Sequence[Step]) -> tuple[list[tuple[int, int]], list[str]]:
    """Returns (start, done) of each collective that runs behind others, and a line for each that has no partner."""
    pairs: list[tuple[int, int]] = []
    problems: list[str] = []
    begun: dict[tuple[int, ...], int] = {}
    for number, step in enumerate(steps):
        buffers = tuple(step.buffers)
        match phase_of(step):
            case "start":
                if buffers in begun:
                    problems.append(
                        f"step {number} starts what step {begun[buffers]} has started and no step has ended"
                    )
                begun[buffers] = number
            case "done" if buffers not in begun:
                problems.append(f"step {number} waits for a collective that no step before it starts")
            case "done":
                start = begun.pop(buffers)
                if _without_phase(steps[start]) != _without_phase(step):
                    problems.append(f"step {number} waits for another collective than step {start} starts")
                pairs.append((start, number))
            case _:
                pass
    problems += [f"step {start} starts a collective, and no step waits for it" for start in begun.values()]
    return pairs, problems


def _without_phase(step: Step) -> CollectiveCall:
    assert step.collective is not None, "phase_of has looked"
    return replace(step.collective, phase="run")


def jump_problems(steps: Sequence[Step], pairs: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yields a line for each jump that would start a collective without its end, or end one that was not started."""
    for number, step in enumerate(steps):
        if step.kernel != JUMP_KERNEL:
            continue
        for start, done in pairs:
            if (start < number < done) != (start < step.target <= done):
                yield f"step {number} jumps to step {step.target}, across steps {start} to {done} of a collective"


def touch_problems(steps: Sequence[Step], pairs: Sequence[tuple[int, int]], overlap: Overlap) -> Iterator[str]:
    """Yields a line for each step that touches the output of a collective under way, or writes into its input.

    Which buffers a kernel writes is not said: that it leaves the input as it is is up to whoever made the manifest.
    """
    for start, done in pairs:
        source, target = steps[start].buffers
        for number in range(start + 1, done):
            step = steps[number]
            written = step.buffers[1:] if step.kernel in (COPY_KERNEL, COLLECTIVE_KERNEL) else []
            if any(overlap(buffer, target) for buffer in step.buffers):
                yield f"step {number} uses the output of the collective that steps {start} to {done} run"
            elif any(overlap(buffer, source) for buffer in written):
                yield f"step {number} writes into the input of the collective that steps {start} to {done} run"
