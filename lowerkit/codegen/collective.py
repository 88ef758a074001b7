"""Collectives as steps: a start and a done, one step where nothing stands between them.

Bytes: operand and result of a collective are buffers of the arena, which the ranks of a host see into: an all_reduce
reads and writes each element twice.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lowerkit.codegen.step_draft import Source, total
from lowerkit.codegen.step_place import step_place
from lowerkit.codegen.step_walker import StepWalker
from lowerkit.dialect import CollectiveStartOp
from lowerkit.mlir import ir
from lowerkit.runtimes.manifest import COLLECTIVE_KERNEL, HOST, Step
from lowerkit.runtimes.mesh.structs import REDUCING, CollectiveCall


def start(walker: StepWalker, op: ir.Operation) -> None:
    """Adds the step that begins an ``lk.collective_start``; its result lives in memory of the host.

    Where the operand has no value, the step reads and writes the one buffer of the result.
    """
    view = op.opview
    assert isinstance(view, CollectiveStartOp)
    kind = view.kind.value
    result = op.results[0]
    given = None if _has_no_value(view) else walker.buffer(walker.source(op.operands[0]))
    target = walker.arena(result, HOST)
    source = target if given is None else given
    walker.places.sources[result] = Source(target)
    name, location = step_place(op)
    element = str(ir.RankedTensorType(op.operands[0].type).element_type)
    root, peer = max(view.other("root"), 0), view.other("peer")
    walker.draft.steps.append(
        Step(
            kernel=COLLECTIVE_KERNEL,
            buffers=[source, target],
            name=name,
            kind=kind,
            family="collective",
            location=location,
            bytes=total([walker.draft.size(buffer) for buffer in dict.fromkeys([source, target])]),
            collective=CollectiveCall(kind, view.axis.value, element, _reduction(view), "start", root, peer),
        )
    )


def _has_no_value(view: CollectiveStartOp) -> bool:
    """Whether the operand only says what comes: of a receive, and of a broadcast from another rank."""
    owner = view.value.owner
    empty = not isinstance(owner, ir.Block) and owner.operation.name == "tensor.empty"
    return view.kind.value == "receive" or (view.kind.value == "broadcast" and empty)


def _reduction(view: CollectiveStartOp) -> Any:
    return view.reduction.value if view.kind.value in REDUCING else "sum"


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
