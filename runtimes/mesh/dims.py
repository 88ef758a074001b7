"""What a collective step hands to the native runtime: ``lk_step_call`` in ``lowerkit_collective.h``."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.runtimes.manifest import ITEM_SIZES, ProgramSpec
from lowerkit.runtimes.mesh.pairs import pair_up, touch_problems
from lowerkit.runtimes.mesh.structs import IN_PLACE, MESSAGES, named

PHASES = {"run": 0, "start": 1, "done": 2}
OPERATIONS = {
    "broadcast": 1, "reduce": 2, "all_reduce": 3, "all_gather": 6, "reduce_scatter": 7, "all_to_all": 8, "send": 9,
    "receive": 10,
}  # fmt: skip
REDUCTIONS = {"sum": 0, "product": 1, "min": 2, "max": 3}
DTYPES = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "i1")
"""The native numbers of phases, operations, reductions and dtypes."""

Place = tuple[int, int]
"""Base and offset of a buffer."""


def collective_dims(program: ProgramSpec, number: int, sizes: Sequence[int], places: Sequence[Place]) -> list[int]:
    """Returns phase, operation, dtype, reduction, count, ranks and root of collective step ``number``.

    Args:
        program: has the step, and the mesh.
        number: of the step.
        sizes: bytes of each buffer.
        places: where each buffer lies.

    Raises:
        ValueError: the buffers do not have the sizes that the operation needs, or overlap.
    """
    step = program.steps[number]
    call = step.collective
    assert call is not None, "validation has looked"
    ranks = next(axis.size for axis in program.mesh if axis.name == call.axis)
    source, target = step.buffers
    given, taken = sizes[source], sizes[target]
    item = ITEM_SIZES[call.dtype]
    parts_given, parts_taken = _parts(call.operation, ranks)
    count, rest = divmod(given, item * parts_given)
    if rest or taken != count * item * parts_taken:
        raise ValueError(
            f"step {number} is {named(call.operation)} of {call.dtype} in {ranks} ranks, "
            f"from {given} bytes to {taken} of each"
        )
    in_place = call.operation in IN_PLACE and places[source] == places[target]
    if not in_place and share_bytes(source, target, sizes, places):
        raise ValueError(f"step {number} is {named(call.operation)} whose input and output overlap")
    numbers = PHASES[call.phase], OPERATIONS[call.operation], DTYPES.index(call.dtype), REDUCTIONS[call.reduction]
    return [*numbers, count, ranks, call.peer if call.operation in MESSAGES else call.root]


def _parts(operation: str, ranks: int) -> tuple[int, int]:
    """Returns how many parts of the count that the native side is told the input and the output have."""
    match operation:
        case "all_gather":
            return 1, ranks
        case "reduce_scatter":
            return ranks, 1
        case "all_to_all":
            return ranks, ranks
        case "send":
            return 1, 0
        case _:
            return 1, 1


def check_touches(program: ProgramSpec, sizes: Sequence[int], places: Sequence[Place]) -> None:
    """Checks that nothing disturbs a collective that runs behind other steps.

    Raises:
        ValueError: a step touches what it writes, or writes what it reads.
    """
    pairs, _ = pair_up(program.steps)
    for problem in touch_problems(program.steps, pairs, lambda a, b: share_bytes(a, b, sizes, places)):
        raise ValueError(problem)


def share_bytes(one: int, other: int, sizes: Sequence[int], places: Sequence[Place]) -> bool:
    """Tells whether two buffers, by number, share bytes."""
    (base, first), (other_base, second) = places[one], places[other]
    return base == other_base and first < second + sizes[other] and second < first + sizes[one]
