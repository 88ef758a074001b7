"""Which loops of a nest may be dealt out to threads: their iterations share no element that one of them writes.

Vocabulary
    nest   a loop at the top of a body, with the loops that stand in it alone: ``for i { for j { ... } }``
    place  where an iteration stays in a memory: dim ``d`` of every access is ``factor * iteration + rest``, so that
           two iterations never meet in it

A loop is parallel where every memory that the nest writes has a place for it. Such a loop may be taken out of the nest
whatever stands around it, as its bounds are known before the nest begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.targets.cuda.planner.accesses import (
    Access,
    Form,
    accesses_in,
    form_of,
    is_pure,
    operations_in,
)


@dataclass(frozen=True)
class Place:
    """Dim ``dim`` of ``view`` is ``factor * iteration + rest``."""

    view: ir.Value
    dim: int
    factor: int
    rest: Form


@dataclass(frozen=True)
class ParallelLoop:
    """A loop to deal out.

    Attributes:
        depth: how many loops of the nest stand around it.
        bounds: first iteration, end, step: values from outside of the nest.
        places: by memory, of those that every iteration keeps to itself: all that are written, and others.
    """

    depth: int
    bounds: tuple[ir.Value, ir.Value, ir.Value]
    places: Mapping[ir.Value, Place]


@dataclass(frozen=True)
class Nest:
    """An op at the top of a body that touches memory.

    Attributes:
        op: the outermost loop; or any other op, which has no parallel loops.
        parallel: the loops to deal out, from outside to inside.
        reads, writes: the memories.
    """

    op: ir.Operation
    parallel: tuple[ParallelLoop, ...]
    reads: frozenset[ir.Value]
    writes: frozenset[ir.Value]


def read_nest(op: ir.Operation, is_countable: Callable[[ParallelLoop], bool]) -> Nest | None:
    """Returns what is known of an op at the top of a body; None where it may touch memory in unknown ways.

    ``is_countable`` says of a loop whether its iterations can be counted before the launch.
    """
    accesses = accesses_in(op)
    if accesses is None:
        return None
    private = {each.results[0] for each in operations_in(op) if each.name in ("memref.alloc", "memref.alloca")}
    accesses = [access for access in accesses if access.memory not in private]
    reads = frozenset(access.memory for access in accesses if not access.stores)
    writes = frozenset(access.memory for access in accesses if access.stores)
    loops = tuple(loop for loop in _parallel_loops(op, accesses, writes) if is_countable(loop))
    return Nest(op, loops, reads, writes)


def loops_of(op: ir.Operation) -> list[ir.Operation]:
    """Returns the loops of a nest that carry no values, from outside to inside."""
    loops: list[ir.Operation] = []
    current: ir.Operation | None = op
    while current is not None and current.name == "scf.for" and not len(current.results):
        loops.append(current)
        inside = [each.operation for each in current.regions[0].blocks[0].operations]
        busy = [each for each in inside if not is_pure(each)]
        current = busy[0] if len(busy) == 1 else None
    return loops


def _parallel_loops(
    op: ir.Operation, accesses: Sequence[Access], writes: frozenset[ir.Value]
) -> tuple[ParallelLoop, ...]:
    found: list[ParallelLoop] = []
    inside = {value for each in operations_in(op) for value in _defined_by(each)}
    for depth, loop in enumerate(loops_of(op)):
        lower, upper, step = list(loop.operands)[:3]
        if inside & {lower, upper, step}:
            continue
        iteration = loop.regions[0].blocks[0].arguments[0]
        places: dict[ir.Value, Place] = {}
        for memory in {access.memory for access in accesses}:
            place = _place([access for access in accesses if access.memory == memory], iteration, inside)
            if place is not None:
                places[memory] = place
        if writes <= set(places):
            found.append(ParallelLoop(depth, (lower, upper, step), places))
    return tuple(found)


def _defined_by(op: ir.Operation) -> list[ir.Value]:
    arguments = [value for region in op.regions for block in region.blocks for value in block.arguments]
    return [*op.results, *arguments]


def _place(accesses: Sequence[Access], iteration: ir.Value, inside: set[ir.Value]) -> Place | None:
    """Returns where one iteration stays in a memory, if all accesses say the same."""
    view = accesses[0].view
    if view in inside or any(access.view != view for access in accesses):
        return None
    for dim, index in enumerate(accesses[0].indices):
        form = form_of(index)
        factor, rest = form.terms.get(iteration, 0), form.without(iteration)
        if not factor or inside & set(rest.terms):
            continue
        if all(form_of(access.indices[dim]) == form for access in accesses):
            return Place(view, dim, factor, rest)
    return None
