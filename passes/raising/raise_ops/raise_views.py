"""Raises views of unknown extents to ``tensor.reshape``.

torch-mlir matches the extents of both sides by their static sizes and takes what is left for 1: of ``[?, ?, 32]``
viewed as ``[-1, 32]`` it forgets a dimension. Here every extent is stated, -1 as what the others leave over;
``resolve-shapes`` makes views of the reshapes where dimensions split and join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    NotConcernedError,
    RefusalError,
    build,
    from_builtin,
    list_items,
    tensor_info,
    to_builtin,
    try_int,
)
from lowerkit.passes.rewriting import constant_index, dimension


def _raise_view(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """view, reshape: (input, sizes): one size may be -1."""
    source, result = tensor_info(op.operands[0]), tensor_info(op.results[0])
    if None not in source.shape and None not in result.shape:
        raise NotConcernedError
    items = list_items(op.operands[1])
    if not items or not source.shape:
        raise NotConcernedError
    numbers = [try_int(item) for item in items]
    if numbers.count(-1) > 1:
        raise RefusalError("more than one size is -1")
    value = to_builtin(op.operands[0])
    stated = [
        _index(item) if number is None else constant_index(number)
        for number, item in zip(numbers, items, strict=True)
        if number != -1
    ]
    sizes = list(stated)
    if -1 in numbers:
        total = _product([dimension(value, axis) for axis in range(len(source.shape))])
        left_over = arith.DivUIOp(total, _product(stated)).result if stated else total
        sizes.insert(numbers.index(-1), left_over)
    shape = tensor.FromElementsOp(ir.RankedTensorType.get([len(sizes)], ir.IndexType.get()), sizes).result
    # What a size states may be more than the result's type knows: an export with open dims may fix their product.
    extents = [
        number if known is None and number != -1 else known for number, known in zip(numbers, result.shape, strict=True)
    ]
    type_ = result.with_shape(extents).builtin_type()
    reshaped = ir.Operation.create("tensor.reshape", results=[type_], operands=[value, shape]).results[0]
    return [from_builtin(reshaped, result)]


def _index(size: ir.Value) -> ir.Value:
    number = build("torch_c.to_i64", [size], [ir.IntegerType.get_signless(64)])[0]
    return arith.IndexCastOp(ir.IndexType.get(), number).result


def _product(extents: Sequence[ir.Value]) -> ir.Value:
    total = extents[0]
    for extent in extents[1:]:
        total = arith.MulIOp(total, extent).result
    return total


@dataclass(frozen=True)
class RaiseViews(TablePass):
    """Raises views with unknown extents. Precondition: none; views of static shapes are left to the conversion."""

    name: ClassVar[str] = "raise-views"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.view": _raise_view,
        "torch.aten.reshape": _raise_view,
        "torch.aten._unsafe_view": _raise_view,
        "torch.aten._reshape_alias": _raise_view,
    }
