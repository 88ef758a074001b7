"""Where everything lies in the memory that a C program hands in, for all values of the symbolic dims at once.

The runtime plans the arena anew for each shape. A C program allocates it once, so here each temporary gets the place
that it has where every buffer is as large as it may become: what is disjoint there is so where all are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowerkit.errors import UsageError
from lowerkit.runtimes.expression_bounds import Range, bounds
from lowerkit.runtimes.expressions import Expr
from lowerkit.runtimes.manifest import ITEM_SIZES, Buffer, ProgramSpec
from lowerkit.runtimes.memory_plan import arena_lives, plan_memory

_ALIGNMENT = 128  # of the scratch of a thread: two cache lines


@dataclass(frozen=True)
class Place:
    """A buffer: ``offset`` (bytes) from the start of its root.

    Attributes:
        kind: of the root; never ``alias``.
        index: number of the input, output or state.
        weight: name of the weight.
        start: where the root starts within the arena or the states.
        offset: an expression; 0 where the buffer is the root.
    """

    kind: str
    index: int
    weight: str
    start: int
    offset: Expr


@dataclass(frozen=True)
class Layout:
    """Sizes and places in bytes, for one thread's scratch, and the range of each dim."""

    ranges: Mapping[str, Range]
    places: list[Place]
    arena_bytes: int
    scratch_bytes: int
    state_starts: list[int]
    state_bytes: int


def plan_layout(program: ProgramSpec, maxima: Mapping[str, int]) -> Layout:
    """Plans the memory of a C program.

    Args:
        program: of an artifact that was opened and checked.
        maxima: the greatest values of dims, which the signature may leave open.

    Raises:
        UsageError: LK1009, a dim has no maximum, or one outside its range; all of them at once.
    """
    ranges = _ranges(program, maxima)
    sizes = [max(0, bounds(buffer.size, ranges)[1]) for buffer in program.buffers]
    roots = [_root(program, number) for number in range(len(program.buffers))]
    lives = arena_lives(program, [root for root, _ in roots])
    offsets, total = plan_memory(
        [sizes[number] for number in lives],
        [first for first, _ in lives.values()],
        [last for _, last in lives.values()],
    )
    starts = dict(zip(lives, offsets, strict=True))
    state_starts: list[int] = []
    state_bytes = 0
    for spec in program.signature.states:
        state_starts.append(state_bytes)
        count = ITEM_SIZES[spec.dtype]
        for extent in spec.shape:
            count *= bounds(extent, ranges)[1]
        state_bytes += -(-count // _ALIGNMENT) * _ALIGNMENT
    places: list[Place] = []
    for root, offset in roots:
        buffer = program.buffers[root]
        start = state_starts[buffer.index] if buffer.kind == "state" else starts.get(root, 0)
        places.append(Place(buffer.kind, buffer.index, buffer.weight, start, offset))
    scratch = max((bounds(step.scratch_bytes, ranges)[1] for step in program.steps), default=0)
    return Layout(ranges, places, _aligned(total), _aligned(scratch), state_starts, state_bytes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _root(program: ProgramSpec, number: int) -> tuple[int, Expr]:
    """Returns the buffer that owns the memory of buffer ``number``, and the offset in it."""
    offset: Expr = 0
    buffer: Buffer = program.buffers[number]
    while buffer.kind == "alias":
        offset = buffer.offset if offset == 0 else ("add", offset, buffer.offset)
        number = buffer.target
        buffer = program.buffers[number]
    return number, offset


def _ranges(program: ProgramSpec, maxima: Mapping[str, int]) -> dict[str, Range]:
    problems = [f"the model has no dim {name!r}" for name in maxima.keys() - {d.name for d in program.signature.dims}]
    ranges: dict[str, Range] = {}
    for dim in program.signature.dims:
        most = maxima.get(dim.name, dim.maximum)
        if most is None:
            problems.append(f"the dim {dim.name!r} has no maximum")
        elif not dim.minimum <= most <= (dim.maximum if dim.maximum is not None else most):
            problems.append(f"the dim {dim.name!r} may be {dim.minimum} to {dim.maximum}, not {most}")
        else:
            ranges[dim.name] = (dim.minimum, most)
    if problems:
        raise UsageError(
            "LK1009",
            "a C program needs to know how much memory to allocate",
            details=sorted(problems),
            hint="give the greatest value that each dim will have: --maximum NAME=VALUE",
        )
    return ranges
