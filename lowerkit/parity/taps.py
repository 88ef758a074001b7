"""Taps: the values that code gives as further outputs, so that each can be compared with eager's value of the same op.

A tap's name is the node name in the location of the op that computes it (``node@module.path``). Layout passes may have
permuted a value; :func:`align` brings it back to the shape of the reference.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowerkit.codegen.shapes import ShapeTable
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import func, ir
from lowerkit.parity.computed_values import ComputedValues
from lowerkit.program.locations import last_part, origin_of
from lowerkit.program.program import Program
from lowerkit.runtimes.expressions import Expr
from lowerkit.runtimes.manifest import Signature, TensorSpec
from lowerkit.spmd.held_apart import held_apart

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tap:
    """One tapped value: the node it stands for, its kind, the user's line, its place among the outputs.

    ``kind`` is that of the region, or the name of the accelerator's function.

    ``readers`` are the places among the outputs of what is computed from it next: taps, and outputs of the model.
    """

    node: str
    kind: str
    location: str
    output: int
    readers: frozenset[int]


def add_taps(program: Program) -> tuple[list[Tap], list[str]]:
    """Makes the values that the code of a fused program gives outputs as well, whatever their shapes are.

    These are the last result of every region, and what accelerators give back. A value whose shape is no function of
    the symbolic dims (it depends on data) has no tap; nor has one that the ranks of a mesh hold apart.

    Returns:
        the taps in program order, and lines that name the values that have none, with the reason.
    """
    main = program.main.opview
    assert isinstance(main, func.FuncOp)
    computed = ComputedValues(program.module, main)
    apart = held_apart(program) if program.mesh else set[ir.Value]()
    terminator = list(main.entry_block.operations)[-1].operation
    values, specs = list(terminator.operands), list(program.signature.outputs)
    found: list[tuple[Tap, ir.Value]] = []
    unnamed: dict[str, list[str]] = {}
    tapped: dict[ir.Operation, int] = {}
    inputs = zip(main.entry_block.arguments, (each.shape for each in program.signature.inputs), strict=True)
    table = ShapeTable(dict(inputs))
    computed.define_shapes(table)
    for each in computed.given:
        if each.value in apart:
            continue  # no value of the model: the parts that ranks hold are compared where they come together
        tensor_type = ir.RankedTensorType(each.value.type)
        last = last_op(each.unit, each.result)
        source = origin_of(last_part(last.location))
        shape = _shape(each.value, table)
        why = _why_not(source.node, shape, last, finished=computed.finishes(source.node, each.unit))
        if why or shape is None:
            unnamed.setdefault(why, []).append(f"{source.node} ({each.kind})" if source.node else each.kind)
            continue
        place = len(values)
        tapped[each.unit] = place
        tap = Tap(f"{source.node}@{source.module}", each.kind, source.source_line or "", place, frozenset())
        found.append((tap, each.computed))
        specs.append(TensorSpec(f"tap.{len(values)}", str(tensor_type.element_type), shape))
        values.append(each.value)
    taps = [replace(tap, readers=frozenset(computed.readers(value, tapped))) for tap, value in found]
    with ir.InsertionPoint(terminator), terminator.location:
        func.ReturnOp(values)
    terminator.erase()
    signature = ir.FunctionType.get(main.type.inputs, [value.type for value in values], context=program.context)
    main.attributes["function_type"] = ir.TypeAttr.get(signature, context=program.context)
    old = program.signature
    program.signature = Signature(old.inputs, specs, old.states, old.dims, old.guards)
    return taps, [*computed.left_out, *(f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in unnamed.items())]


def _why_not(node: str, shape: list[Expr] | None, last: ir.Operation, *, finished: bool) -> str:
    """Returns why a value is no tap; empty where it is one."""
    if not node:
        return "no node of the model computes it: a pass made it"
    if shape is None:
        return "its shape depends on data"
    if _is_part_of_a_node(last) or not finished:
        return "a part of a node that a later region finishes: eager never has the value in between"
    return ""


def _shape(value: ir.Value, table: ShapeTable) -> list[Expr] | None:
    """Returns the shape of a tensor over the symbolic dims; None where it depends on data."""
    try:
        return list(table.shape(value))
    except UnsupportedError:
        return None


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
