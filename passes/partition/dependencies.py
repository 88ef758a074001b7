"""Which op of a block needs which others first: the graph that a partition must not close to a circle.

Vocabulary
    transparent   an op that computes extents, makes room or names data (``tensor.dim``, ``tensor.empty``, constants,
                  ``lk.weight``): it belongs to whoever reads it, and is written again in each function
    ordered       an op with effects on states or on the run: these keep their order
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import OpMap, captured_values, defining_op, has_effects, operations


def is_transparent(op: ir.Operation) -> bool:
    """Whether an op computes nothing of a tensor's content, so that each function may have its own."""
    if op.name in ("tensor.empty", "tensor.dim", "lk.weight"):
        return True
    if not op.name.startswith(("arith.", "affine.")):
        return False
    return not any(isinstance(result.type, ir.RankedTensorType) for result in op.results)


def read_values(op: ir.Operation) -> list[ir.Value]:
    """Returns everything that an op reads, by its operands or inside its regions."""
    return list(dict.fromkeys([*op.operands, *captured_values(op)]))


def data_values(op: ir.Operation) -> list[ir.Value]:
    """Returns the tensors that an op reads or takes an extent of, through transparent ops."""
    found: dict[ir.Value, None] = {}
    todo = read_values(op)
    while todo:
        value = todo.pop()
        owner = defining_op(value)
        if owner is not None and is_transparent(owner):
            todo += read_values(owner)
        else:
            found[value] = None
    return list(found)


def predecessors(ops: Sequence[ir.Operation], *, through_transparent: bool = True) -> list[set[int]]:
    """Returns for each op the numbers of those that come before it: what it reads, and of ordered ops the last one.

    Args:
        ops: of one block, in program order; without the transparent ones, or with them.
        through_transparent: what a transparent op reads counts as read by its readers.
    """
    number_of = OpMap[int]()
    for number, op in enumerate(ops):
        number_of[op] = number
    found: list[set[int]] = []
    last_ordered: int | None = None
    for number, op in enumerate(ops):
        values = data_values(op) if through_transparent else read_values(op)
        owners = [owner for value in values if (owner := defining_op(value)) is not None]
        before = {number_of[owner] for owner in owners if owner in number_of}
        if _is_ordered(op):
            before |= {last_ordered} if last_ordered is not None else set()
            last_ordered = number
        found.append(before)
    return found


def _is_ordered(op: ir.Operation) -> bool:
    """Functions of accelerators have no effects; reads of a state must not pass its writes."""
    return op.name == "lk.state_read" or (has_effects(op) and op.name != "lk.call")


def put_in_order(block: ir.Block) -> None:
    """Moves ops so that each stands behind what it needs; else they stay as they are."""
    ops = operations(block)
    before = predecessors(ops, through_transparent=False)
    done: set[int] = set()
    order: list[int] = []
    for number in range(len(ops)):
        todo = [number]
        while todo:
            missing = sorted(before[todo[-1]] - done, reverse=True)
            if missing:
                todo += missing
                continue
            placed = todo.pop()
            if placed not in done:
                done.add(placed)
                order.append(placed)
    end = ops[-1]
    for number in order:
        if number != len(ops) - 1:
            ops[number].move_before(end)


class Groups:
    """Sets of ops, each op alone at first; merged only where the graph of sets stays free of circles.

    A set that is left and entered again could not be called as one function; two sets that need each other could not be
    put in order. Both are circles of the graph whose nodes are the sets.
    """

    def __init__(self, before: Sequence[set[int]]) -> None:
        self._parent = list(range(len(before)))
        self._before = [set(each) for each in before]

    def root(self, number: int) -> int:
        """Returns the number that stands for the set of an op."""
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def merge(self, numbers: Sequence[int]) -> bool:
        """Merges the sets of ops into one, unless that closed a circle; returns whether it was done."""
        roots = {self.root(number) for number in numbers}
        if len(roots) == 1:
            return True
        if self._is_circle(roots):
            return False
        first, *others = sorted(roots)
        for other in others:
            self._parent[other] = first
            self._before[first] |= self._before[other]
        return True

    def _roots_before(self, root: int) -> set[int]:
        return {self.root(number) for number in self._before[root]} - {root}

    def _is_circle(self, roots: set[int]) -> bool:
        """Whether a path leaves ``roots`` and comes back."""
        todo = [before for root in roots for before in self._roots_before(root) if before not in roots]
        seen = set(todo)
        while todo:
            for before in self._roots_before(todo.pop()):
                if before in roots:
                    return True
                if before not in seen:
                    seen.add(before)
                    todo.append(before)
        return False
