"""x^n of a float and an integer as x^y of two floats, for which there is a function of ours."""

from __future__ import annotations

from lowerkit.mlir import ir, walk


def whole_powers(module: ir.Module) -> None:
    """Replaces each ``math.fpowi``; upstream takes the sign of a zero for that of its power."""
    found: list[ir.Operation] = []
    walk(module.operation, lambda op: found.append(op) if op.name == "math.fpowi" else None)
    for op in found:
        base, exponent = op.operands
        with ir.InsertionPoint(op), op.location:
            number = ir.Operation.create("arith.sitofp", results=[base.type], operands=[exponent]).results[0]
            power = ir.Operation.create("math.powf", results=[base.type], operands=[base, number])
        op.results[0].replace_all_uses_with(power.results[0])
        op.erase()
