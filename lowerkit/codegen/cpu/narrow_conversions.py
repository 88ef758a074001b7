"""Converts floats to integers of 8 and 16 bits through 32 bits, of which the low ones are kept.

That is what PyTorch's conversions do on x86 (300 as a byte is 44, NaN is 0). LLVM takes a number beyond the narrow type
for undefined, and its vectors saturate at one width or another.
"""

from __future__ import annotations

from lowerkit.mlir import ir, walk

_CONVERSIONS = frozenset({"arith.fptosi", "arith.fptoui"})
_NARROW = ("i8", "i16")


def widen_conversions(module: ir.Module) -> bool:
    """Rewrites each conversion of floats to narrow integers, of scalars and vectors; returns whether there was one."""
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> None:
        if op.name in _CONVERSIONS and str(_element(op.results[0].type)) in _NARROW:
            found.append(op)

    walk(module.operation, collect)
    for op in found:
        kind = op.results[0].type
        with ir.InsertionPoint(op), op.location:
            wide: ir.Type = ir.IntegerType.get_signless(32)
            if isinstance(kind, ir.VectorType):
                wide = ir.VectorType.get(kind.shape, wide)
            whole = ir.Operation.create("arith.fptosi", results=[wide], operands=[op.operands[0]])
            cut = ir.Operation.create("arith.trunci", results=[kind], operands=[whole.results[0]])
        op.results[0].replace_all_uses_with(cut.results[0])
        op.erase()
    return bool(found)


def _element(kind: ir.Type) -> ir.Type:
    return kind.element_type if isinstance(kind, ir.VectorType) else kind
