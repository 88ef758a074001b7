"""Computes equal values once.

Upstream ``cse`` joins ops that are equal in every respect, bodies included, and weights of one name. Beside it,
elementwise ops are joined that differ in the order of their inputs, in the destinations they were given, or in the
order of the operands of commutative body ops (value numbering of the body). Of equal checks of indices the first stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir, run_pipeline
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import Elementwise, IndexMap, as_elementwise
from lowerkit.passes.rewriting import DYNAMIC, defined_by, erase_dead, main_block, operations, shape_of

_COMMUTATIVE = frozenset(
    {
        "arith.addf", "arith.mulf", "arith.addi", "arith.muli", "arith.andi", "arith.ori", "arith.xori",
        "arith.maximumf", "arith.minimumf", "arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui",
    }
)  # fmt: skip


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Joins equal ops.

    Precondition: stage raised, canonical or layout (no regions yet).
    """

    name: ClassVar[str] = "common-subexpressions"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        before = len(operations(main_block(module)))
        run_pipeline(module, "builtin.module(cse)")
        block = main_block(module)
        known: dict[object, ir.Operation] = {}
        checks: list[ir.Operation] = []
        for op in operations(block):
            if op.name == "lk.check_indices":
                if any(_same_check(op, other) for other in checks):
                    op.erase()
                else:
                    checks.append(op)
                continue
            if op.name != "linalg.generic":
                continue
            view = as_elementwise(op)
            if view is None:
                continue
            first = known.setdefault(_key(view), op)
            if first is not op:
                for result, same in zip(op.results, first.results, strict=True):
                    result.replace_all_uses_with(same)
        erase_dead(block)
        return len(operations(block)) != before


def _same_check(one: ir.Operation, other: ir.Operation) -> bool:
    """Whether two checks of indices ask the same, whatever the op that they stand for."""
    asked = ("wraps", "exempt")
    return list(one.operands) == list(other.operands) and all(
        one.attributes[name] == other.attributes[name] for name in asked
    )


def _key(view: Elementwise) -> object:
    """Returns a value that is equal for elementwise ops that compute the same."""
    numbers: dict[object, int] = {}
    value_numbers: dict[ir.Value, int] = {}

    def number(term: object) -> int:
        return numbers.setdefault(term, len(numbers))

    inputs = sorted(
        {(value, index_map) for value, index_map in zip(view.inputs, view.maps, strict=True)}, key=_input_order
    )
    for term in inputs:
        number(term)
    for argument, value, index_map in zip(view.body.arguments, view.inputs, view.maps, strict=False):
        value_numbers[argument] = number((value, index_map))
    for inner in operations(view.body):
        operands = [value_numbers[value] if value in value_numbers else number(value) for value in inner.operands]
        if inner.name in _COMMUTATIVE:
            operands.sort()
        attributes = tuple(sorted((name, str(inner.attributes[name])) for name in inner.attributes))
        types = tuple(str(result.type) for result in inner.results)
        term = (inner.name, tuple(operands), attributes, types)
        if inner.name == "linalg.yield":
            types = tuple(str(result.type) for result in view.op.results)
            return (tuple(numbers.items()), term, types, _extents_of_destinations(view))
        value_numbers[inner.result] = number(term)
    raise AssertionError("a linalg body ends in linalg.yield")


def _extents_of_destinations(view: Elementwise) -> tuple[ir.Value, ...]:
    """Returns what states the extents that no input states: those of ``arange(n)`` are its destination's alone."""
    found: list[ir.Value] = []
    for destination in list(view.op.operands)[len(view.inputs) :]:
        shape = shape_of(destination)
        unknown = [axis for axis, extent in enumerate(shape) if extent == DYNAMIC]
        empty = defined_by(destination, "tensor.empty")
        for position, axis in enumerate(unknown):
            if not any(axis in index_map for index_map in view.maps[: len(view.inputs)]):
                found.append(destination if empty is None else empty.operands[position])
    return tuple(found)


def _input_order(item: tuple[ir.Value, IndexMap]) -> tuple[int, str]:
    """An order of inputs that does not depend on the op: any order does, as long as it is the same for equal sets."""
    value, index_map = item
    return hash(value), str(index_map)
