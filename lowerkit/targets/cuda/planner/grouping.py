"""Which nests of a body become one kernel: those whose threads need nothing of each other.

Neighbouring nests share a kernel where their parallel loops have the same bounds, and where in every memory that one of
them writes and another touches each thread keeps to the same places in both: what it reads there it wrote itself.

A number that is loaded between nests belongs to the single thread of its kernel; other kernels that need it load it
again. A body for which that would give another number is one kernel of one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.targets.cuda.planner.accesses import is_pure, operations_in
from lowerkit.targets.cuda.planner.nests import Nest, ParallelLoop, read_nest


@dataclass(frozen=True)
class Group:
    """Nests that become one kernel, in order; all have as many parallel loops, dealt out together.

    Attributes:
        nests: with their parallel loops; one thread runs those without.
        positions: which op of the body each nest is.
    """

    nests: tuple[Nest, ...]
    positions: tuple[int, ...]

    def takes(self, nest: Nest) -> bool:
        """Whether ``nest``, which comes next, may run in the same threads."""
        return all(_are_apart(mine, nest) for mine in self.nests)

    def with_nest(self, nest: Nest, position: int) -> Group:
        """The group and one more nest."""
        return Group((*self.nests, nest), (*self.positions, position))


def group_nests(block: ir.Block, is_countable: Callable[[ParallelLoop], bool]) -> list[Group]:
    """Returns the kernels of a body in order; one of a single thread where the body cannot be cut.

    ``is_countable`` says of a loop whether its iterations can be counted before the launch.
    """
    operations = [op.operation for op in block.operations]
    busy = [(at, op) for at, op in enumerate(operations) if not (is_pure(op) or op.name == "memref.alloc")]
    groups: list[Group] = []
    nests: dict[int, Nest] = {}
    for at, op in busy:
        nest = read_nest(op, is_countable)
        if nest is None:
            return _whole(busy)
        nests[at] = nest
        if groups and groups[-1].takes(nest):
            groups[-1] = groups[-1].with_nest(nest, at)
        else:
            groups.append(Group((nest,), (at,)))
    if not all(_needs_are_met(group, nests) for group in groups):
        return _whole(busy)
    return [group for group in groups if any(nest.op.name != "memref.load" for nest in group.nests)]


def _whole(busy: Sequence[tuple[int, ir.Operation]]) -> list[Group]:
    nests = tuple(Nest(op, (), frozenset(), frozenset()) for _, op in busy)
    return [Group(nests, tuple(at for at, _ in busy))] if busy else []


def _are_apart(one: Nest, other: Nest) -> bool:
    if len(one.parallel) != len(other.parallel):
        return False
    if any(mine.bounds != yours.bounds for mine, yours in zip(one.parallel, other.parallel, strict=True)):
        return False
    shared = (one.writes & (other.reads | other.writes)) | (one.reads & other.writes)
    return all(
        memory in mine.places and mine.places[memory] == yours.places.get(memory)
        for memory in shared
        for mine, yours in zip(one.parallel, other.parallel, strict=True)
    )


def _needs_are_met(group: Group, nests: dict[int, Nest]) -> bool:
    """Whether what other ops of the body computed for these nests is the same when this kernel loads it again."""
    positions = {nest.op: at for at, nest in nests.items()}
    mine = set(group.positions)
    for nest in group.nests:
        for op in _needed_by(nest.op, set(positions)):
            at = positions[op]
            if at in mine:
                continue
            if op.name != "memref.load":
                return False
            later = [each for place, each in nests.items() if at < place <= group.positions[-1] or place in mine]
            if any(nests[at].reads & each.writes for each in later):
                return False
    return True


def _needed_by(nest: ir.Operation, busy: set[ir.Operation]) -> set[ir.Operation]:
    """Returns the ops of the body, beside those that compute values alone, whose results a nest reads."""
    found: set[ir.Operation] = set()
    seen: set[ir.Operation] = {nest}
    todo = [operand for op in operations_in(nest) for operand in op.operands]
    while todo:
        value = todo.pop()
        if isinstance(value.owner, ir.Block):
            continue
        op = value.owner.operation
        if op in seen:
            continue
        seen.add(op)
        if op in busy:
            found.add(op)
        else:
            todo += list(op.operands)
    return found
