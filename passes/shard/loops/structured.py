"""The loops of ``linalg`` ops, from their maps.

An iterator that is a reduction gives terms where the body is ``yield combine(element, accumulator)`` with a combine
that collectives know and a destination that holds its neutral element; a parallel iterator whose number the body asks
for is opaque, since a rank counts its own slice from 0.
"""

from __future__ import annotations

import numpy as np

from lowerkit.mlir import ir
from lowerkit.passes.elementwise import as_elementwise
from lowerkit.passes.rewriting import (
    DYNAMIC,
    captured_values,
    constant_of,
    defining_op,
    nested_operations,
    operations,
    shape_of,
    tensor_type,
)
from lowerkit.passes.shard.loops.nest import Index, Kind, Loop, Nest

_COMBINES: dict[str, Kind] = {
    "arith.addf": "sum",
    "arith.addi": "sum",
    "arith.mulf": "product",
    "arith.muli": "product",
    "arith.maximumf": "max",
    "arith.maxsi": "max",
    "arith.minimumf": "min",
    "arith.minsi": "min",
}


def structured(op: ir.Operation) -> Nest | None:
    """Returns the loops of a ``linalg`` op on tensors; None where a body reads tensors by itself."""
    view = as_elementwise(op)
    if view is not None:
        maps = [*view.maps, *([tuple(range(view.rank))] * len(view.inits))]
        loops = [
            Loop(extent, "opaque" if axis in _counted(op) else "parallel") for axis, extent in enumerate(view.shape)
        ]
        scalars = len(op.operands) - len(view.inputs) - len(view.inits)  # of a fill
        indices = [tuple(() if loop is None else (loop,) for loop in index_map) for index_map in maps]
        operands = [*([None] * scalars), *indices]
        first = len(operands) - len(view.inits)
        destinations = {first + number: number for number in range(len(view.inits))}
        return Nest(tuple(loops), tuple(operands), tuple(indices[len(view.inputs) :]), destinations)
    return _generic(op) if op.name == "linalg.generic" else None


def _generic(op: ir.Operation) -> Nest | None:
    if not len(op.results) or any(tensor_type(value) is None for value in (*op.operands, *op.results)):
        return None
    if any(tensor_type(value) is not None for value in captured_values(op)):
        return None
    maps = [ir.AffineMapAttr(attribute).value for attribute in op.attributes["indexing_maps"]]
    iterators = [str(each) for each in ir.ArrayAttr(op.attributes["iterator_types"])]
    count = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0]
    block = op.regions[0].blocks[0]
    kind = _combine(op, block, count) if any("reduction" in each for each in iterators) else "parallel"
    opaque, extents = _counted(op), [DYNAMIC] * len(iterators)
    indices: list[tuple[Index, ...]] = []
    for operand, index_map in zip(op.operands, maps, strict=True):
        found: list[Index] = []
        for extent, expression in zip(shape_of(operand), index_map.results, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                extents[expression.position] = max(extent, extents[expression.position])
                found.append((expression.position,))
            else:
                opaque |= _loops_in(expression)
                found.append(())
        indices.append(tuple(found))
    loops: list[Loop] = []
    for axis, (extent, iterator) in enumerate(zip(extents, iterators, strict=True)):
        plain: Kind = kind if "reduction" in iterator else "parallel"
        loops.append(Loop(extent, "opaque" if axis in opaque else plain))
    read = [bool(next(iter(argument.uses), None)) for argument in list(block.arguments)[count:]]
    destinations = {count + number: number for number, used in enumerate(read) if not used}
    return Nest(tuple(loops), tuple(indices), tuple(indices[count:]), destinations)


def _counted(op: ir.Operation) -> set[int]:
    """The loops whose number the body asks for."""
    inner = [each for each in nested_operations(op) if each.name == "linalg.index"]
    return {ir.IntegerAttr(each.attributes["dim"]).value for each in inner}


def _loops_in(expression: ir.AffineExpr) -> set[int]:
    if isinstance(expression, ir.AffineDimExpr):
        return {expression.position}
    if isinstance(expression, ir.AffineBinaryExpr):
        return _loops_in(expression.lhs) | _loops_in(expression.rhs)
    return set()


def _combine(op: ir.Operation, block: ir.Block, count: int) -> Kind:
    """What the reductions of a body come to; opaque where that is no reduction that collectives know."""
    accumulators = list(block.arguments)[count:]
    ended = operations(block)[-1]
    kinds: set[Kind] = set()
    for number, (accumulator, made) in enumerate(zip(accumulators, ended.operands, strict=True)):
        combine = defining_op(made)
        uses = list(accumulator.uses)
        kind = None if combine is None else _COMBINES.get(combine.name)
        if kind is None or len(uses) != 1 or combine is None or accumulator not in list(combine.operands):
            return "opaque"
        if len(list(made.uses)) != 1 or not _is_neutral(op.operands[count + number], kind):
            return "opaque"
        kinds.add(kind)
    return kinds.pop() if len(kinds) == 1 else "opaque"


def _is_neutral(value: ir.Value, kind: Kind) -> bool:
    """Whether a destination holds what changes no result: each rank starts from it."""
    owner = defining_op(value)
    number = None if owner is None or owner.name != "linalg.fill" else number_of(constant_of(owner.operands[0]))
    constant = constant_of(value)
    if constant is not None and isinstance(constant, ir.DenseElementsAttr) and constant.is_splat:
        number = number_of(constant.get_splat_value())
    return number == {"sum": 0.0, "product": 1.0, "max": -np.inf, "min": np.inf}[kind]


def number_of(attribute: ir.Attribute | None) -> float | None:
    """Returns the number that an attribute is; None for what is none."""
    if isinstance(attribute, ir.FloatAttr):
        return ir.FloatAttr(attribute).value
    return float(ir.IntegerAttr(attribute).value) if isinstance(attribute, ir.IntegerAttr) else None
