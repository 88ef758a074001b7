"""Liveness: from which step to which each temporary buffer matters, and whether a state is read after it is written.

Views share the buffer they look at, so an interval covers every reader of every view. A buffer is never both operand
and result of one step (kernels may rely on results not aliasing operands), so two buffers may share memory if their
intervals, both ends included, do not meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from lowerkit.mlir import ir
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import HOST, Buffer, Step

VIEW_OPS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast")
"""Ops whose result is the buffer of their operand."""


@dataclass(frozen=True)
class ArenaUse:
    """What the arena of a model needs for given dims.

    Attributes:
        buffers: number of temporaries.
        total_bytes: their sizes added up: what it would cost never to reuse memory.
        peak_bytes: the largest sum of sizes that are live at one step: no plan can need less.
    """

    buffers: int
    total_bytes: int
    peak_bytes: int


def with_liveness(
    buffers: Sequence[Buffer], steps: Sequence[Step], loops: Sequence[tuple[int, int]] = ()
) -> list[Buffer]:
    """Returns ``buffers`` with the first and last step of each arena buffer filled in.

    Args:
        buffers: all buffers.
        steps: all steps.
        loops: first and last step of each loop, inner loops first. What was made before a loop and is read inside
            lives until its end: the next turn reads it again.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        for buffer in step.buffers:
            root = root_of(buffers, buffer)
            first.setdefault(root, number)
            last[root] = number
    for begin, end in loops:
        for buffer, step in last.items():
            if first[buffer] < begin <= step < end:
                last[buffer] = end
    return [
        replace(buffer, first_step=first.get(number, -1), last_step=last.get(number, -1))
        if buffer.kind == "arena"
        else buffer
        for number, buffer in enumerate(buffers)
    ]


def root_of(buffers: Sequence[Buffer], number: int) -> int:
    """Returns the buffer that owns the memory which a buffer lies in."""
    while buffers[number].kind == "alias":
        number = buffers[number].target
    return number


def arena_use(buffers: Sequence[Buffer], dims: Mapping[str, int]) -> ArenaUse:
    """Returns what the arena of the host needs when the symbolic dims have the values ``dims``."""
    in_arena = [buffer for buffer in buffers if buffer.kind == "arena" and buffer.memory == HOST]
    arena = [buffer for buffer in in_arena if buffer.first_step >= 0]
    sizes = [evaluate(buffer.size, dims) for buffer in arena]
    changes: dict[int, int] = {}
    for buffer, size in zip(arena, sizes, strict=True):
        changes[buffer.first_step] = changes.get(buffer.first_step, 0) + size
        changes[buffer.last_step + 1] = changes.get(buffer.last_step + 1, 0) - size
    live = peak = 0
    for step in sorted(changes):
        live += changes[step]
        peak = max(peak, live)
    return ArenaUse(len(arena), sum(sizes), peak)


def overwritten_in_use(value: ir.Value, symbol: str, rest: Sequence[ir.Operation]) -> bool:
    """Whether ``rest`` writes the state ``symbol`` while ``value``, read from it, still has readers to come."""
    views = {value}
    written = False
    for op in rest:
        reads = any(operand in views for operand in op.operands)
        if reads and written:
            return True
        if reads and op.name in VIEW_OPS:
            views.update(op.results)
        if op.name == "lk.state_write" and ir.StringAttr(op.attributes["symbol"]).value == symbol:
            written = True
    return False
