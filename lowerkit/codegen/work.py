"""The work of a region whose shapes are symbolic: its FLOPs as an expression over the dims of the signature.

The lk ops of the body count their own work once they are told the shapes of their operands and results. Those are
derived from a copy of the body in which they are returned and all lk ops are lowered: no shape rule is written twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.codegen.lower_lk import lower_lk_ops
from lowerkit.codegen.shapes import ShapeTable
from lowerkit.dialect.base import LkOperation
from lowerkit.dialect.extents import Extent, expression_of
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.runtimes.expressions import Expr
from lowerkit.targets.region_view import RegionView


def region_flops(view: RegionView, operands: Sequence[Sequence[Expr]]) -> Expr:
    """Returns the FLOPs of a region, given the shapes of its operands; 0 where they depend on data."""
    counted, lowered = view.clone_module(), view.clone_module()
    values = _values(counted)
    with lowered.context, ir.Location.unknown():
        block = _return_also(lowered, _values(lowered))
        lower_lk_ops(lowered)
        table = ShapeTable(dict(zip(block.arguments, operands, strict=True)))
        returned = list(list(block.operations)[-1].operation.operands)[-len(values) :] if values else []
        try:
            shapes = dict(zip(values, map(table.shape, returned), strict=True))
        except UnsupportedError:
            return 0

    def shape(value: ir.Value) -> list[int | Extent]:
        return [extent if isinstance(extent, int) else Extent(extent) for extent in shapes[value]]

    total: int | Extent = 0
    for op in _block(counted).operations:
        count = op.flops(shape) if isinstance(op, LkOperation) else 0
        if count is None:
            return 0
        total = total + count
    return expression_of(total)


def _block(module: ir.Module) -> ir.Block:
    return module.body.operations[0].operation.regions[0].blocks[0]


def _values(module: ir.Module) -> list[ir.Value]:
    """The operands and results of the lk ops of a body, each once, in order."""
    found: list[ir.Value] = []
    for op in _block(module).operations:
        if isinstance(op, LkOperation):
            values = [*op.operation.operands, *op.operation.results]
            found += [value for value in values if isinstance(value.type, ir.RankedTensorType) and value not in found]
    return found


def _return_also(module: ir.Module, values: Sequence[ir.Value]) -> ir.Block:
    """Makes the function of ``module`` return ``values`` behind its own results; returns its body."""
    function = module.body.operations[0].operation
    block = _block(module)
    end = list(block.operations)[-1].operation
    results = [*end.operands, *values]
    with ir.InsertionPoint(end):
        ir.Operation.create("func.return", operands=results)
    end.erase()
    inputs = [argument.type for argument in block.arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(inputs, [result.type for result in results])
    )
    return block
