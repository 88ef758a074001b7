"""Converts between unsigned integers and the wider signed ones that stand for them, on builtin tensors."""

from __future__ import annotations

import re

from lowerkit.mlir import ir, linalg

_INTEGER = re.compile(r"!torch\.vtensor<\[([0-9?,]*)\],[su]i(\d+)>")


def convert_integers(value: ir.Value, wanted: ir.Type) -> ir.Value:
    """Converts a torch tensor of integers to ``wanted``: with zeros above when it is wider, else cut off.

    Args:
        value: a ``!torch.vtensor`` of integers.
        wanted: the same shape with another width.
    """
    source, target = _builtin(value.type), _builtin(wanted)
    value = ir.Operation.create("torch_c.to_builtin_tensor", results=[source], operands=[value]).result
    if source != target:
        value = _converted(value, source, target)
    return ir.Operation.create("torch_c.from_builtin_tensor", results=[wanted], operands=[value]).result


def _builtin(kind: ir.Type) -> ir.RankedTensorType:
    found = _INTEGER.fullmatch(str(kind))
    assert found is not None, f"{kind} is no tensor of integers of known rank"
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [dynamic if text == "?" else int(text) for text in found.group(1).split(",") if text]
    return ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(int(found.group(2))))


def _converted(value: ir.Value, source: ir.RankedTensorType, target: ir.RankedTensorType) -> ir.Value:
    name = "arith.extui" if target.element_type.width > source.element_type.width else "arith.trunci"
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
