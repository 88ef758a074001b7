"""Branches and loops as steps: the functions that they call are written out in place, with jumps between them.

    lk.cond                               lk.while
        jump to B unless the predicate        copies of the initial values into the carried buffers
        steps of the first function        A  steps of the condition
        jump to C                             jump to B unless its result
     B  steps of the second function          steps of the body, copies of its results into the carried buffers
     C                                        jump to A
                                           B

The steps stay one list, so liveness is an interval of it and both branches share the arena. Only a loop's jump goes
backwards: what a loop reads but did not make has to live until its end (:func:`lowerkit.codegen.memory.with_liveness`).
Bytes: a branch computes its results where they are read later; a loop copies each carried value once a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.codegen.shapes import Shape
from lowerkit.codegen.step_draft import Source, byte_size
from lowerkit.codegen.step_place import step_place
from lowerkit.codegen.step_walker import StepWalker
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.runtimes.expressions import to_text
from lowerkit.runtimes.manifest import HOST, Buffer


def branch(walker: StepWalker, op: ir.Operation) -> None:
    """Adds the steps of an ``lk.cond``.

    Raises:
        UnsupportedError: LK4002, the branches give results of different shapes.
    """
    draft = walker.draft
    predicate, *operands = op.operands
    arguments = [walker.source(operand) for operand in operands]
    given = [walker.shapes.shape(operand) for operand in operands]
    to_second = draft.jump(op, "branch", unless=walker.buffer(walker.source(predicate)))
    results = [draft.add(Buffer("arena", 0)) for _ in op.results]
    first_own = len(draft.buffers)
    sources, shapes = walker.walk(_symbol(op, "then_function"), arguments, given)
    for result, value, shape in zip(results, op.results, shapes, strict=True):
        draft.buffers[result] = Buffer("arena", byte_size(value.type, shape))
    _settle(walker, op, sources, results, first_own)
    to_end = draft.jump(op, "branch")
    draft.land(to_second)
    first_own = len(draft.buffers)
    sources, others = walker.walk(_symbol(op, "else_function"), arguments, given)
    _require_equal(op, "branches", shapes, others)
    _settle(walker, op, sources, results, first_own)
    draft.land(to_end)
    walker.define(list(op.results), results, shapes)


def loop(walker: StepWalker, op: ir.Operation) -> None:
    """Adds the steps of an ``lk.while``.

    Raises:
        UnsupportedError: LK4002, a carried value changes its shape.
    """
    draft = walker.draft
    operands = list(op.operands)
    count = len(op.results)
    shapes = [walker.shapes.shape(operand) for operand in operands]
    carried = [
        draft.add(Buffer("arena", byte_size(operand.type, shape)))
        for operand, shape in zip(operands[:count], shapes, strict=False)
    ]
    for operand, buffer in zip(operands[:count], carried, strict=True):
        draft.copy(walker.buffer(walker.source(operand)), buffer, op)
    arguments = [*map(Source, carried), *(walker.source(operand) for operand in operands[count:])]
    begin = len(draft.steps)
    (predicate,), _ = walker.walk(_symbol(op, "condition_function"), arguments, shapes)
    to_end = draft.jump(op, "loop", unless=walker.buffer(predicate))
    sources, after = walker.walk(_symbol(op, "body_function"), arguments, shapes)
    _require_equal(op, "steps", shapes[:count], after)
    next_values = [walker.buffer(source) for source in sources]
    for number, buffer in enumerate(next_values):
        if buffer in carried and buffer != carried[number]:  # values that change places must not overwrite each other
            next_values[number] = draft.add(Buffer("arena", draft.size(buffer)))
            draft.copy(buffer, next_values[number], op)
    for buffer, target in zip(next_values, carried, strict=True):
        if buffer != target:
            draft.copy(buffer, target, op)
    draft.jump(op, "loop", target=begin)
    draft.loops.append((begin, len(draft.steps) - 1))
    draft.land(to_end)
    walker.define(list(op.results), carried, shapes[:count])


def _settle(
    walker: StepWalker, op: ir.Operation, sources: Sequence[Source], results: Sequence[int], first_own: int
) -> None:
    """Brings what a branch returns into the buffers of the results: made there where a step made it, else copied."""
    draft = walker.draft
    for source, result in zip(sources, results, strict=True):
        buffer = walker.buffer(source)
        if buffer >= first_own and draft.buffers[buffer].kind == "arena" and draft.buffers[buffer].memory == HOST:
            draft.buffers[buffer] = Buffer("alias", draft.size(buffer), target=result)
        else:
            draft.copy(buffer, result, op)


def _require_equal(op: ir.Operation, what: str, shapes: Sequence[Shape], others: Sequence[Shape]) -> None:
    unequal = [
        f"result {number}: [{_text(one)}] and [{_text(other)}]"
        for number, (one, other) in enumerate(zip(shapes, others, strict=True))
        if one != other
    ]
    if unequal:
        name, location = step_place(op)
        raise UnsupportedError(
            "LK4002",
            f"the {what} of {name} give values of different shapes, so the shape depends on data",
            op=op.name,
            location=location or None,
            details=unequal,
            hint="pad the values to one shape",
        )


def _text(shape: Shape) -> str:
    return ", ".join(to_text(extent) for extent in shape)


def _symbol(op: ir.Operation, attribute: str) -> str:
    return ir.StringAttr(op.attributes[attribute]).value
