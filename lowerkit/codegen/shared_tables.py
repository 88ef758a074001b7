"""Weights that are a table of rows and a matrix at once, such as tied embeddings: they are stored once.

A look-up could take the rows as they are, a product wants them packed. A look-up reads a few rows, a product all of
them: so the look-up reads from the layout of the product, and the weight as it was is not stored. Bytes: the rows that
are looked up, an element a cache line; the artifact and its memory shrink by the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.codegen.memory import VIEW_OPS
from lowerkit.mlir import ir
from lowerkit.targets.packing import Packing
from lowerkit.targets.plan import DeviceCode
from lowerkit.targets.region_view import RegionView


class SharedTables:
    """Finds the layouts in which the tables of a function's look-ups are stored for products."""

    def __init__(self, operations: Sequence[ir.Operation]) -> None:
        self._products: dict[str, tuple[ir.Operation, int]] = {}
        looked_up: set[str] = set()
        for op in operations:
            if op.name == "lk.region":
                kind = ir.StringAttr(op.attributes["kind"]).value
                for number, operand in enumerate(op.operands):
                    symbol = _weight_of(operand)
                    if symbol and kind == "gather":
                        looked_up.add(symbol)
                    elif symbol and kind == "matmul":
                        self._products.setdefault(symbol, (op, number))
        for symbol in self._products.keys() - looked_up:
            del self._products[symbol]

    def layouts(
        self, view: RegionView, select: Callable[[ir.Operation, Sequence[str]], DeviceCode]
    ) -> dict[int, Packing]:
        """Returns operand number -> layout for the tables of a look-up that a product has packed; else nothing.

        Args:
            view: of the region that may be a look-up.
            select: plans a region, given the weights that its operands are.
        """
        if view.kind != "gather":
            return {}
        found: dict[int, Packing] = {}
        for operand in view.operands:
            if operand.weight_name in self._products:
                op, number = self._products[operand.weight_name]
                packing = select(op, [_weight_of(value) for value in op.operands]).packings.get(number)
                same_shape = ir.RankedTensorType(op.operands[number].type).shape == operand.type.shape
                if packing is not None and same_shape and packing.has_rows:
                    found[operand.index] = packing
        return found


def _weight_of(value: ir.Value) -> str:
    """Returns the weight that a value is, ``""`` where it is none."""
    owner = value.owner
    while isinstance(owner, (ir.Operation, ir.OpView)) and owner.operation.name in VIEW_OPS:
        owner = owner.operation.operands[0].owner
    if not isinstance(owner, (ir.Operation, ir.OpView)) or owner.operation.name != "lk.weight":
        return ""
    return ir.StringAttr(owner.operation.attributes["symbol"]).value
