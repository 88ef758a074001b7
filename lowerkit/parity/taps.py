"""Taps: the value of every region as a further output, so that it can be compared with eager's value of the same op.

A tap's name is the node name in its region's location (``node@module.path``). Layout passes may have permuted a
value; :func:`align` brings it back to the shape of the reference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowerkit.codegen.shapes import ShapeTable
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import func, ir, walk
from lowerkit.program.locations import last_part, origin_of
from lowerkit.program.program import Program
from lowerkit.runtimes.expressions import Expr
from lowerkit.runtimes.manifest import Signature, TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tap:
    """One tapped value: the node it stands for, the region's kind, the user's line, its place among the outputs.

    ``readers`` are the places among the outputs of what is computed from it next: taps, and outputs of the model.
    """

    node: str
    kind: str
    location: str
    output: int
    readers: frozenset[int]


def add_taps(program: Program) -> list[Tap]:
    """Makes the last result of every region of a fused program an output as well, whatever its shape is.

    A region whose shape is no function of the symbolic dims (it depends on data) has no tap.
    """
    main = program.main.opview
    assert isinstance(main, func.FuncOp)
    terminator = list(main.entry_block.operations)[-1].operation
    values, specs = list(terminator.operands), list(program.signature.outputs)
    found: list[Tap] = []
    tapped: dict[ir.Operation, int] = {}
    finishing = _finishing_regions(main)
    table = ShapeTable(
        dict(zip(main.entry_block.arguments, (each.shape for each in program.signature.inputs), strict=True))
    )
    for operation in list(main.entry_block.operations):
        if operation.operation.name != "lk.region":
            continue
        result = operation.operation.results[-1]
        tensor_type = ir.RankedTensorType(result.type)
        last = last_op(operation.operation)
        source = origin_of(last_part(last.location))
        shape = _shape(result, table)
        if not source.node or shape is None or _is_part_of_a_node(last):
            continue
        if finishing[source.node] != operation.operation:
            continue  # a convolution whose bias is added in a later region: eager never has the value in between
        kind = ir.StringAttr(operation.operation.attributes["kind"]).value
        place = len(values)
        tapped[operation.operation] = place
        found.append(Tap(f"{source.node}@{source.module}", kind, source.source_line or "", place, frozenset()))
        specs.append(TensorSpec(f"tap.{len(values)}", str(tensor_type.element_type), shape))
        values.append(result)
    taps = [replace(tap, readers=frozenset(_readers(values[tap.output], tapped))) for tap in found]
    with ir.InsertionPoint(terminator), terminator.location:
        func.ReturnOp(values)
    terminator.erase()
    signature = ir.FunctionType.get(main.type.inputs, [value.type for value in values], context=program.context)
    main.attributes["function_type"] = ir.TypeAttr.get(signature, context=program.context)
    old = program.signature
    program.signature = Signature(old.inputs, specs, old.states, old.dims, old.guards)
    return taps


def _shape(value: ir.Value, table: ShapeTable) -> list[Expr] | None:
    """Returns the shape of a tensor over the symbolic dims; None where it depends on data."""
    try:
        return list(table.shape(value))
    except UnsupportedError:
        return None


def _readers(value: ir.Value, tapped: dict[ir.Operation, int]) -> Iterator[int]:
    """Yields the places of what is computed from ``value`` next, through views and regions without a tap."""
    for use in value.uses:
        owner = use.owner.operation
        if owner.name == "func.return":
            yield use.operand_number
        elif owner in tapped:
            yield tapped[owner]
        else:
            for result in owner.results:
                yield from _readers(result, tapped)


def _finishing_regions(main: func.FuncOp) -> dict[str, ir.Operation]:
    """Returns node name -> the last region, in program order, with a part of that node.

    Constants are no part: equal ones of several nodes are shared, and carry the location of the first.
    """
    found: dict[str, ir.Operation] = {}
    for operation in main.entry_block.operations:
        if operation.operation.name != "lk.region":
            continue
        nodes: set[str] = set()

        def add(inner: ir.Operation, nodes: set[str] = nodes) -> None:
            if inner.name != "arith.constant":
                nodes.update(_nodes_of(inner.location))

        walk(operation.operation, add)
        found.update(dict.fromkeys(nodes, operation.operation))
    return found


def _nodes_of(location: ir.Location) -> set[str]:
    if isinstance(location, ir.FusedLoc):
        return set[str]().union(*(_nodes_of(part) for part in location.locations))
    return {origin_of(location).node}


def _is_part_of_a_node(operation: ir.Operation) -> bool:
    """Tells whether an op is only a part of what its last location names.

    A convolution that a batch norm was folded into carries both locations; when its bias is added in the region of a
    consumer, the value in between is one that eager never has.
    """
    return operation.name.startswith("lk.") and isinstance(operation.location, ir.FusedLoc)


def last_op(region: ir.Operation, result: int = -1) -> ir.Operation:
    """Returns the op, deep inside a region, that makes one of its results.

    A region and a fused ``linalg.generic`` carry the locations of all that was fused into them; the scalar op that is
    yielded belongs to the last one alone.
    """
    operation = region
    while operation.regions and len(operation.regions[0].blocks):
        terminator = list(operation.regions[0].blocks[0].operations)[-1].operation
        owner = terminator.operands[result].owner
        if not isinstance(owner, (ir.Operation, ir.OpView)):
            return operation
        result = ir.OpResult(terminator.operands[result]).result_number
        operation = owner.operation
    return operation


def align(value: Array, reference: Array) -> Array | None:
    """Returns ``value`` in the shape of ``reference``: as it is, permuted by a layout pass, or reshaped.

    Where several permutations fit (equal extents), the one nearest to the reference is taken. None when none fits.
    """
    if value.shape == reference.shape and value.ndim < 3:
        return value
    candidates: list[Array] = []
    squeezed = [extent for extent in reference.shape if extent != 1]
    if 2 <= value.ndim <= 5:
        for order in itertools.permutations(range(value.ndim)):
            shape = tuple(value.shape[axis] for axis in order)
            if shape == reference.shape or [extent for extent in shape if extent != 1] == squeezed:
                candidates.append(value.transpose(order).reshape(reference.shape))
    if value.size == reference.size:
        candidates.append(value.reshape(reference.shape))
    if not candidates:
        return None
    wanted = reference.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return min(candidates, key=lambda candidate: float(np.nansum(np.abs(candidate.astype(np.float64) - wanted))))
