"""Programs of messages between the ranks along an axis, made by hand: each place runs its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from lowerkit.runtimes.manifest import (
    COLLECTIVE_KERNEL,
    JUMP_KERNEL,
    Buffer,
    CollectiveCall,
    MeshAxis,
    ProgramSpec,
    Signature,
    Step,
)
from tests.support.handmade_code import f32
from tests.support.mesh.collective_programs import copy


def message(
    operation: str, axis: str, peer: int, buffers: Sequence[int], phase: str = "run", dtype: str = "f32"
) -> Step:
    call = CollectiveCall(operation, axis, dtype, phase=phase, peer=peer)  # pyright: ignore[reportArgumentType]
    name = f"{operation}@{peer}"
    return Step(COLLECTIVE_KERNEL, [*buffers], collective=call, name=name, kind=operation, location="model.py:9")


def ring(mesh: Mapping[str, int], axis: str, count: int, *, behind: bool) -> list[ProgramSpec]:
    """``y``: the ``x`` of the rank before, and ``z`` that of the one before it: two messages from each to the next.

    Args:
        mesh: its axes.
        axis: along which they go; at least two ranks.
        count: elements of a message.
        behind: sends are under way while the rank receives; else the first place alone sends before it receives.
    """
    size = mesh[axis]
    axes = [MeshAxis(name, ranks) for name, ranks in mesh.items()]
    programs: list[ProgramSpec] = []
    for place in range(size):
        after, before = (place + 1) % size, (place - 1) % size
        buffers = [
            Buffer("input", 4 * count, index=0),
            Buffer("output", 4 * count, index=0),
            Buffer("output", 4 * count, index=1),
            *(Buffer("arena", 4 * elements) for elements in (count, count, count, 0, 0)),
        ]
        given, first, second, token, other = 3, 4, 5, 6, 7
        if behind:
            steps = [
                message("send", axis, after, [given, token], "start"),
                message("receive", axis, before, [first, first], "start"),
                message("receive", axis, before, [second, second], "start"),
                message("receive", axis, before, [first, first], "done"),
                message("send", axis, after, [first, other], "start"),
                message("send", axis, after, [first, other], "done"),
                message("send", axis, after, [given, token], "done"),
                message("receive", axis, before, [second, second], "done"),
            ]
        else:
            sends, receives = (
                [message("send", axis, after, [given, token]), message("send", axis, after, [first, token])],
                [message("receive", axis, before, [buffer, buffer]) for buffer in (first, second)],
            )
            turns = (sends[0], receives[0]) if place == 0 else (receives[0], sends[0])
            later = (sends[1], receives[1]) if place == 0 else (receives[1], sends[1])
            steps = [*turns, *later]
        outputs = [f32(name, count) for name in ("y", "z")]
        programs.append(
            ProgramSpec(
                Signature(inputs=[f32("x", count)], outputs=outputs),
                buffers,
                [copy(0, given), *steps, copy(first, 1), copy(second, 2)],
                [],
                mesh=axes,
                place={axis: place},
            )
        )
    return programs


def one_message(
    mesh: Mapping[str, int], axis: str, sent: int, expected: int, dtypes: tuple[str, str] = ("f32", "f32")
) -> list[ProgramSpec]:
    """Rank 0 along the axis sends so many bytes to rank 1, which expects others; the rest does nothing. ``y = x``."""
    axes = [MeshAxis(name, ranks) for name, ranks in mesh.items()]
    programs: list[ProgramSpec] = []
    for place in range(mesh[axis]):
        buffers = [
            Buffer("input", 4, index=0),
            Buffer("output", 4, index=0),
            *(Buffer("arena", size) for size in (sent, expected, 0)),
        ]
        kinds = [("send", 1, [2, 4], dtypes[0]), ("receive", 0, [3, 3], dtypes[1])]
        steps = [message(kind, axis, peer, places, dtype=dtype) for kind, peer, places, dtype in kinds]
        signature = Signature(inputs=[f32("x", 1)], outputs=[f32("y", 1)])
        programs.append(
            ProgramSpec(signature, buffers, [*steps[place : place + 1], copy(0, 1)], [], mesh=axes, place={axis: place})
        )
    return programs


def endless(mesh: Mapping[str, int], axis: str, count: int) -> list[ProgramSpec]:
    """The programs of :func:`ring`, whose ranks never come to an end."""
    programs = ring(mesh, axis, count, behind=True)
    return [
        replace(program, steps=[*program.steps, Step(JUMP_KERNEL, [], target=1, name="again")]) for program in programs
    ]
