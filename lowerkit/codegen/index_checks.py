"""Checks of indices as steps, ahead of everything else that they can be ahead of.

A call whose indices are out of range must leave the states as they were. Results go into a state at the end of a run,
but an update writes into its memory where it stands (:mod:`lowerkit.codegen.in_place`). So checks come as early as
their indices are known, which for arguments and for positions that a state counts is before everything; and where one
comes after an update all the same, the update is made on a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowerkit.codegen.step_place import step_place
from lowerkit.codegen.step_walker import StepWalker
from lowerkit.mlir import ir
from lowerkit.runtimes.manifest import CHECK_KERNEL, IndexCheck, Step

_BODIES = {"lk.cond": ("then_function", "else_function"), "lk.while": ("condition_function", "body_function")}


def checks_first(operations: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Returns the ops of a block in the order of their steps: as they are where no state is written.

    Else each check stands right behind what makes its indices, and where integers alone lead to those, such as a
    position that a state counts, they and the check stand ahead of everything else.
    """
    if not any(op.name == "lk.state_write" for op in operations):
        return list(operations)
    made_by = {result: number for number, op in enumerate(operations) for result in op.results}
    ahead: set[int] = set()
    for number, op in enumerate(operations):
        needed = _needed(op, operations, made_by) if op.name == "lk.check_indices" else None
        if needed is not None:
            ahead |= {number, *needed}
    behind: dict[int, list[int]] = {}
    for number, op in enumerate(operations):
        if op.name == "lk.check_indices" and number not in ahead:
            behind.setdefault(max((made_by.get(operand, -1) for operand in op.operands), default=-1), []).append(number)
    late = {number for numbers in behind.values() for number in numbers}
    order = sorted(ahead) + [number for place in (-1, *ahead) for number in behind.get(place, [])]
    for number in range(len(operations)):
        if number not in ahead and number not in late:
            order += [number, *behind.get(number, [])]
    return [operations[number] for number in order]


def _needed(
    check: ir.Operation, operations: Sequence[ir.Operation], made_by: Mapping[ir.Value, int]
) -> set[int] | None:
    """The ops that a check depends on; None where one of them gives more than integers, or chooses what runs."""
    found: set[int] = set()
    waiting = list(check.operands)
    while waiting:
        number = made_by.get(waiting.pop())
        if number is None or number in found:
            continue
        op = operations[number]
        if op.name in _BODIES or not all(map(_is_integer, op.results)):
            return None
        found.add(number)
        waiting += op.operands
    return found


def _is_integer(value: ir.Value) -> bool:
    kind = ir.RankedTensorType(value.type).element_type if isinstance(value.type, ir.RankedTensorType) else value.type
    return isinstance(kind, ir.IntegerType | ir.IndexType)


def may_end_the_run(following: Sequence[ir.Operation], functions: Mapping[str, ir.Block]) -> bool:
    """Whether an op of ``following``, or of the bodies that one runs, checks indices."""
    for op in following:
        if op.name == "lk.check_indices":
            return True
        for attribute in _BODIES.get(op.name, ()):
            body = functions[ir.StringAttr(op.attributes[attribute]).value]
            if may_end_the_run([inner.operation for inner in body.operations], functions):
                return True
    return False


def check(walker: StepWalker, op: ir.Operation) -> None:
    """Adds the step of an ``lk.check_indices``."""
    indices, *extents = op.operands
    kind = ir.RankedTensorType(indices.type)
    exempt = list(ir.DenseI64ArrayAttr(op.attributes["exempt"]))
    name, location = step_place(op)
    source = walker.buffer(walker.source(indices))
    walker.draft.steps.append(
        Step(
            kernel=CHECK_KERNEL,
            buffers=[source],
            name=name,
            kind="index check",
            family="check",
            location=location,
            bytes=walker.draft.size(source),
            check=IndexCheck(
                dtype=str(kind.element_type),
                extents=[walker.shapes.index(extent) for extent in extents],
                wraps=ir.BoolAttr(op.attributes["wraps"]).value,
                exempt=exempt[0] if exempt else None,
                operator=ir.StringAttr(op.attributes["operator"]).value,
            ),
        )
    )
