"""The steps of a compiled program as pieces of work: what computes for how long, and what ranks exchange.

Steps of a program state their operations and bytes, after fusion, as expressions over the symbolic dims. Loops count as
one turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import JUMP_KERNEL, ProgramSpec, Step
from lowerkit.spmd.cost.collective_time import Algorithm, fastest
from lowerkit.spmd.cost.machine import DeviceModel, Links


@dataclass(frozen=True)
class Exchange:
    """A collective that a step begins, ends, or both.

    Attributes:
        kind: ``all_reduce``, ``send``, ...
        axis, ranks: along which, and how many.
        peer: of messages, whom they go to or come from.
        operand_bytes: of this rank.
        algorithm: the fastest one.
        phase: ``start``, ``done``, or ``run`` for both.
        buffers: which start a done belongs to.
    """

    kind: str
    axis: str
    ranks: int
    peer: int
    operand_bytes: int
    algorithm: Algorithm
    phase: str
    buffers: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A step of one rank.

    Attributes:
        name, kind, location: for people.
        flops, moved: operations; bytes read and written.
        seconds: of its computation, or of the exchange.
        exchange: of a collective.
    """

    name: str
    kind: str
    location: str
    flops: int
    moved: int
    seconds: float
    exchange: Exchange | None = None


def pieces_of(program: ProgramSpec, dims: Mapping[str, int], device: DeviceModel, links: Links) -> list[Piece]:
    """Returns the steps of ``program`` that take time, in order, for the values ``dims`` of the symbolic dims."""
    sizes = {axis.name: axis.size for axis in program.mesh}
    found: list[Piece] = []
    for step in program.steps:
        if step.collective is not None:
            found.append(_exchange(program, step, sizes, dims, links))
        elif step.kernel != JUMP_KERNEL:
            flops, moved = evaluate(step.flops, dims), evaluate(step.bytes, dims)
            found.append(Piece(step.name, step.kind, step.location, flops, moved, device.seconds(flops, moved)))
    return found


def _exchange(
    program: ProgramSpec, step: Step, sizes: Mapping[str, int], dims: Mapping[str, int], links: Links
) -> Piece:
    call = step.collective
    assert call is not None, "the caller looked"
    operand = evaluate(program.buffers[step.buffers[0]].size, dims)
    algorithm = fastest(call.operation, sizes[call.axis], operand, links.along(call.axis))
    exchange = Exchange(
        call.operation,
        call.axis,
        sizes[call.axis],
        call.peer,
        operand,
        algorithm,
        call.phase,
        tuple(step.buffers),
    )
    return Piece(step.name, call.operation, step.location, 0, 0, algorithm.seconds(links.along(call.axis)), exchange)
