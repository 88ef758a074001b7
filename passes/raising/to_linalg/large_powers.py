"""Computes powers with large whole exponents by the function: repeated products lose a digit for every few of them.

Negative ones below -2 are, too: ``1 / (x * x * x)`` is 0 where the cube leaves the range and its reciprocal does not.
torch-mlir writes ``math.fpowi`` for an exponent that is a whole constant, also where it is a float.
"""

from __future__ import annotations

from lowerkit.mlir import ir, walk

_FEW = 4
_FEW_RECIPROCALS = 2
"""PyTorch writes the smallest powers as products itself."""


def call_long_powers(module: ir.Module) -> None:
    """Replaces ``math.fpowi`` by ``math.powf`` where the exponent is a constant beyond the few."""
    found: list[tuple[ir.Operation, int]] = []

    def collect(op: ir.Operation) -> None:
        if op.name != "math.fpowi":
            return
        owner = op.operands[1].owner
        if not isinstance(owner, ir.Block) and owner.operation.name == "arith.constant":
            number = ir.IntegerAttr(owner.operation.attributes["value"]).value
            if not -_FEW_RECIPROCALS <= number <= _FEW:
                found.append((op, number))

    walk(module.operation, collect)
    for op, number in found:
        kind = op.results[0].type
        with ir.InsertionPoint(op), op.location:
            value = {"value": ir.FloatAttr.get(kind, float(number))}
            exponent = ir.Operation.create("arith.constant", results=[kind], attributes=value).results[0]
            power = ir.Operation.create("math.powf", results=[kind], operands=[op.operands[0], exponent])
        op.results[0].replace_all_uses_with(power.results[0])
        op.erase()
