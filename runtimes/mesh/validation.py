"""Checks what a program says of its mesh and of collective steps. Sizes are checked when shapes are bound."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from lowerkit.runtimes.manifest import COLLECTIVE_KERNEL, ITEM_SIZES, Buffer, ProgramSpec, Step
from lowerkit.runtimes.mesh.pairs import jump_problems, pair_up, touch_problems

_AXIS_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_MOST_RANKS = 1 << 20
_WRITTEN_KINDS = ("arena", "output", "state")


def mesh_problems(program: ProgramSpec, features: Collection[str]) -> Iterator[str]:
    """Yields one line for each contradiction in the axes of a mesh."""
    names = [axis.name for axis in program.mesh]
    if len(set(names)) != len(names):
        yield "two axes of the mesh have one name"
    for axis in program.mesh:
        if not _AXIS_NAME.fullmatch(axis.name) or not 1 <= axis.size <= _MOST_RANKS:
            yield f"the axis {axis.name[:40]!r} of the mesh has {axis.size} ranks"
    if names and "mesh" not in features:
        yield "it has a mesh and does not list it as a required feature"


def collective_problems(program: ProgramSpec) -> Iterator[str]:
    """Yields one line for each contradiction in the collective steps of a program."""
    own = [
        f"step {number} {problem}"
        for number, step in enumerate(program.steps)
        if step.kernel == COLLECTIVE_KERNEL or step.collective is not None
        for problem in _step_problems(program, step)
    ]
    yield from own
    if own:
        return  # what belongs together is looked for among steps that are sound by themselves
    pairs, problems = pair_up(program.steps)
    if not pairs and not problems:
        return
    yield from problems
    yield from jump_problems(program.steps, pairs)
    names_of = [_named_memory(program.buffers, number) for number in range(len(program.buffers))]

    def overlap(one: int, other: int) -> bool:
        # Two parts of one buffer may lie apart: that is seen when shapes are bound.
        if not (0 <= one < len(names_of) and 0 <= other < len(names_of)):
            return False
        return bool(names_of[one] and names_of[other]) and (
            names_of[one][-1] in names_of[other] or names_of[other][-1] in names_of[one]
        )

    yield from touch_problems(program.steps, pairs, overlap)


def _step_problems(program: ProgramSpec, step: Step) -> Iterator[str]:
    call = step.collective
    if call is None:
        yield "is a collective and does not say which"
        return
    if step.kernel != COLLECTIVE_KERNEL:
        yield f"says what a collective does and calls kernel {step.kernel}"
        return
    if call.axis not in [axis.name for axis in program.mesh]:
        yield f"is a collective along {call.axis[:40]!r}, which is no axis of the mesh"
    if call.dtype not in ITEM_SIZES:
        yield f"is a collective of the unknown dtype {call.dtype[:40]!r}"
    if call.operation == "all_gather" and call.reduction != "sum":
        yield f"gathers and names the reduction {call.reduction!r}"
    if step.dims:
        yield f"is a collective with {len(step.dims)} dims"
    if len(step.buffers) != 2:
        yield f"is a collective of {len(step.buffers)} buffers"
        return
    if any(not 0 <= number < len(program.buffers) for number in step.buffers):
        return  # said of steps of all kinds
    source, target = (_named_memory(program.buffers, number) for number in step.buffers)
    if target and target[0][0] not in _WRITTEN_KINDS:
        yield f"is a collective that writes into {target[0][0]} memory"
    if call.operation != "all_reduce" and source and source == target:
        yield f"is an {call.operation} of a buffer into itself"


def _named_memory(buffers: list[Buffer], number: int) -> tuple[tuple[str, str | int], ...]:
    """Returns what names the memory of a buffer: its root, then every alias down to itself; empty in a circle."""
    chain: list[tuple[str, str | int]] = []
    for _ in range(len(buffers)):
        if not 0 <= number < len(buffers):
            break
        buffer = buffers[number]
        if buffer.kind == "alias":
            chain.append(("alias", number))
            number = buffer.target
            continue
        place = {"weight": buffer.weight, "arena": number}.get(buffer.kind, buffer.index)
        return ((buffer.kind, place), *reversed(chain))
    return ()
