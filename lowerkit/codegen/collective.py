"""Collectives as steps: a start and a done, one step where nothing stands between them.

Bytes: operand and result of a collective are buffers of the arena, which the ranks of a host see into: an all_reduce
reads and writes each element twice.
"""

from __future__ import annotations

from msgspec.structs import replace

from lowerkit.codegen.step_draft import Source, total
from lowerkit.codegen.step_place import step_place
from lowerkit.codegen.step_walker import StepWalker
from lowerkit.dialect import CollectiveStartOp
from lowerkit.mlir import ir
from lowerkit.runtimes.manifest import COLLECTIVE_KERNEL, HOST, Step
from lowerkit.runtimes.mesh.structs import CollectiveCall


def start(walker: StepWalker, op: ir.Operation) -> None:
    """Adds the step that begins an ``lk.collective_start``; its result lives in memory of the host."""
    view = op.opview
    assert isinstance(view, CollectiveStartOp)
    kind = view.kind.value
    source = walker.buffer(walker.source(op.operands[0]))
    result = op.results[0]
    target = walker.arena(result, HOST)
    walker.places.sources[result] = Source(target)
    name, location = step_place(op)
    element = str(ir.RankedTensorType(result.type).element_type)
    walker.draft.steps.append(
        Step(
            kernel=COLLECTIVE_KERNEL,
            buffers=[source, target],
            name=name,
            kind=kind,
            family="collective",
            location=location,
            bytes=total([walker.draft.size(source), walker.draft.size(target)]),
            collective=CollectiveCall(kind, view.axis.value, element, view.reduction.value, "start"),
        )
    )


def done(walker: StepWalker, op: ir.Operation) -> None:
    """Adds the step that waits for a start, or lets the start wait itself where it is the last step so far."""
    pending, result = op.operands[0], op.results[0]
    place = walker.places.sources[pending]
    steps = walker.draft.steps
    number = max(number for number, step in enumerate(steps) if step.collective and step.buffers[1] == place.buffer)
    begun = steps[number]
    assert begun.collective is not None
    if number == len(steps) - 1:
        steps[number] = replace(begun, collective=replace(begun.collective, phase="run"))
    else:
        steps.append(replace(begun, bytes=0, collective=replace(begun.collective, phase="done")))
    walker.places.sources[result] = place
