"""Conversions of elements that torch-mlir does not have, on builtin tensors: to other integers, and of bits."""

from __future__ import annotations

import re

from lowerkit.mlir import ir, linalg

_TENSOR = re.compile(r"!torch\.vtensor<\[([0-9?,]*)\],([a-z]+)(\d+)>")


def convert_integers(value: ir.Value, wanted: ir.Type) -> ir.Value:
    """Converts a torch tensor of integers to ``wanted``: with zeros above when it is wider, else cut off.

    Args:
        value: a ``!torch.vtensor`` of integers.
        wanted: the same shape with another width.
    """
    source, target = builtin_type(value.type), builtin_type(wanted)
    if source == target:
        return _converted(value, wanted, None)
    wider = target.element_type.width > source.element_type.width
    return _converted(value, wanted, "arith.extui" if wider else "arith.trunci")


def reinterpret_bits(value: ir.Value, wanted: ir.Type) -> ir.Value:
    """Gives the bits of the elements of a torch tensor another type of the same width; a bool is a byte, 0 or 1."""
    source, target = builtin_type(value.type).element_type, builtin_type(wanted).element_type
    if source == target:
        return _converted(value, wanted, None)
    boolean = ir.IntegerType.get_signless(1)
    name = "arith.extui" if source == boolean else "arith.trunci" if target == boolean else "arith.bitcast"
    return _converted(value, wanted, name)


def builtin_type(kind: ir.Type) -> ir.RankedTensorType:
    """Returns the builtin tensor type of a torch tensor type of known rank; integers have no sign in it."""
    found = _TENSOR.fullmatch(str(kind))
    assert found is not None, f"{kind} is no tensor of known rank"
    sizes, letters, width = found.groups()
    element = ir.Type.parse(f"{letters}{width}") if "f" in letters else ir.IntegerType.get_signless(int(width))
    dynamic = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get(
        [dynamic if text == "?" else int(text) for text in sizes.split(",") if text], element
    )


def _converted(value: ir.Value, wanted: ir.Type, name: str | None) -> ir.Value:
    """Applies the arith op ``name`` to each element, None for types that differ in their sign only."""
    source, target = builtin_type(value.type), builtin_type(wanted)
    value = ir.Operation.create("torch_c.to_builtin_tensor", results=[source], operands=[value]).result
    if name is not None:
        value = _mapped(value, source, target, name)
    return ir.Operation.create("torch_c.from_builtin_tensor", results=[wanted], operands=[value]).result


def _mapped(value: ir.Value, source: ir.RankedTensorType, target: ir.RankedTensorType, name: str) -> ir.Value:
    sizes = [_size(value, axis) for axis in range(source.rank) if source.is_dynamic_dim(axis)]
    empty = ir.Operation.create("tensor.empty", results=[target], operands=sizes).result
    identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(source.rank))
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    op = linalg.GenericOp(
        [target], [value], [empty], ir.ArrayAttr.get([identity] * 2), ir.ArrayAttr.get([parallel] * source.rank)
    )
    block = op.regions[0].blocks.append(source.element_type, target.element_type)
    with ir.InsertionPoint(block):
        element = ir.Operation.create(name, results=[target.element_type], operands=[block.arguments[0]]).result
        linalg.YieldOp([element])
    return op.results[0]


def _size(value: ir.Value, axis: int) -> ir.Value:
    index = ir.IndexType.get()
    attribute = ir.IntegerAttr.get(index, axis)
    position = ir.Operation.create("arith.constant", results=[index], attributes={"value": attribute}).result
    return ir.Operation.create("tensor.dim", results=[index], operands=[value, position]).result
