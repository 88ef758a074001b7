"""A function of an accelerator as steps: one launch, or, of a target by regions, one for each region.

Bytes: operands that live on the host are copied to the accelerator once, results back where the host reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.codegen.shapes import Shape, dynamic_dims, result_shapes
from lowerkit.codegen.step_draft import Source, total
from lowerkit.codegen.step_place import step_place
from lowerkit.codegen.step_walker import StepWalker
from lowerkit.codegen.updates import updated_buffer
from lowerkit.codegen.work import region_flops
from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.passes.function_by_function import target_of
from lowerkit.runtimes.manifest import HOST, Step
from lowerkit.targets.ledger import LedgerEntry
from lowerkit.targets.region_view import RegionView


def call(walker: StepWalker, op: ir.Operation, rest: Sequence[ir.Operation]) -> None:
    """Adds the steps of an ``lk.call``; ``rest`` are the ops after it.

    Raises:
        CodegenError: LK5002, the callee is no function of a target; LK5003, the target fails.
    """
    callee = ir.StringAttr(op.attributes["callee"]).value
    function = walker.operations.get(callee)
    memory = target_of(function) if function is not None else HOST
    name, location = step_place(op)
    if function is None or memory == HOST or memory not in walker.compilers:
        raise CodegenError("LK5002", f"{callee!r} is no function of a target", op=op.name, location=location or None)
    operands = list(op.operands)
    shapes = [_extents(walker, operand) for operand in operands]
    if _has_regions(walker.functions[callee]):
        walker.memory, outer = memory, walker.memory
        results, found = walker.walk(
            callee, [walker.places.sources.get(operand, Source()) for operand in operands], shapes, rest
        )
        walker.memory = outer
        walker.shapes.define(op.results, found)
        walker.places.sources.update(zip(op.results, results, strict=True))
        return
    indices = [shape[0] for operand, shape in zip(operands, shapes, strict=True) if not _is_tensor(operand)]
    tensors = [operand for operand in operands if _is_tensor(operand)]
    names = [walker.places.sources[operand].weight for operand in tensors]
    view = RegionView.from_function(function, names, location=location)
    weights = view.operands[len(tensors) :]
    weight_shapes: list[Shape] = [tuple(weight.type.shape) for weight in weights]
    code = walker.compilers[memory](view)
    results = result_shapes(view, [*shapes, *weight_shapes])
    walker.conditions.add_region(view, [*shapes, *weight_shapes], location)
    walker.shapes.define(op.results, results)
    sources = [walker.places.sources[operand] for operand in tensors]
    sources += [Source(weight=weight.weight_name) for weight in weights]
    used_shapes = [*(walker.shapes.shape(operand) for operand in tensors), *weight_shapes]
    used: list[int] = []
    for number, (source, shape) in enumerate(zip(sources, used_shapes, strict=True)):
        if number in code.packings:
            used.append(walker.draft.packed(source, shape, code, number, memory))
        elif source.weight:
            used.append(walker.draft.stored(walker.draft.weights.plain(source.weight), memory))
        else:
            used.append(walker.places.buffer_of(tensors[number], memory))
    for number, value in enumerate(op.results):
        target = code.in_place.get(number)
        if target is None or target >= len(tensors):
            buffer = walker.arena(value, memory)
            if target is not None:  # a weight stays as it is
                walker.draft.copy(used[target], buffer, op)
        else:
            place = next(place for place, operand in enumerate(operands) if operand == tensors[target])
            buffer = updated_buffer(walker, op, place, value, rest, memory)
        walker.places.sources[value] = Source(buffer)
        used.append(buffer)
    walker.draft.ledger.append(
        LedgerEntry(len(walker.draft.steps), name, callee, location, code.family, code.note, code.refusals, memory)
    )
    walker.draft.steps.append(
        Step(
            kernel=walker.draft.kernel(code, memory),
            buffers=used,
            dims=[*dynamic_dims(view.buffer_types, [*used_shapes, *results]), *indices],
            name=name,
            kind=callee,
            family=code.family,
            location=location,
            flops=region_flops(view, [*shapes, *weight_shapes]),
            bytes=total([walker.draft.size(buffer) for buffer in used]),
        )
    )


def _extents(walker: StepWalker, value: ir.Value) -> Shape:
    """The shape of a tensor; an index itself, alone."""
    if _is_tensor(value):
        return walker.shapes.shape(value)
    return (walker.shapes.index(value),)


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _has_regions(block: ir.Block) -> bool:
    return any(op.operation.name == "lk.region" for op in block.operations)
