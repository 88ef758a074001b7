"""Calls the C math library for functions that the upstream conversion writes as another: wrongly near zero.

``convert-math-to-llvm`` makes ``log(1 + x)`` of log1p and ``exp(x) - 1`` of expm1, which give 0 for 1e-20. Vectors and
f32 loops have polynomials of their own (:mod:`lowerkit.targets.cpu.vector.math`); what is left here is f64.
"""

from __future__ import annotations

from lowerkit.mlir import ir, walk

_FUNCTIONS = {"math.log1p": "log1p", "math.expm1": "expm1"}
_SUFFIXES = {"f64": "", "f32": "f"}


def call_library_functions(module: ir.Module) -> bool:
    """Replaces scalar log1p and expm1 by calls; returns whether there was one."""
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> None:
        if op.name in _FUNCTIONS and str(op.results[0].type) in _SUFFIXES:
            found.append(op)

    walk(module.operation, collect)
    for op in found:
        kind = op.results[0].type
        name = _FUNCTIONS[op.name] + _SUFFIXES[str(kind)]
        _declare(module, name, kind)
        with ir.InsertionPoint(op), op.location:
            callee = {"callee": ir.FlatSymbolRefAttr.get(name)}
            call = ir.Operation.create("func.call", results=[kind], operands=[op.operands[0]], attributes=callee)
        op.results[0].replace_all_uses_with(call.results[0])
        op.erase()
    return bool(found)


def _declare(module: ir.Module, name: str, kind: ir.Type) -> None:
    declared = {op.attributes["sym_name"].value for op in module.body.operations if op.operation.name == "func.func"}
    if name in declared:
        return
    with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
        attributes = {
            "sym_name": ir.StringAttr.get(name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get([kind], [kind])),
            "sym_visibility": ir.StringAttr.get("private"),
        }
        ir.Operation.create("func.func", regions=1, attributes=attributes)
