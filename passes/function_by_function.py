"""Runs a pass on each function of a module, alone in a module of its own.

A model without control flow is one function, ``@main``, and passes are written for one. The bodies of branches and
loops are further functions, each of which goes through the same passes.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext


def run_on_functions(one_pass: Pass, module: ir.Module, context: PassContext) -> bool:
    """Runs ``one_pass`` on ``@main`` and then on every other function; returns whether anything changed."""
    bodies = [op.operation for op in module.body.operations if _is_body(op.operation)]
    if not bodies:
        return one_pass.run(module, context)
    inner = replace(context, extent_ranges={})  # the ranges are those of @main's arguments
    with _apart(module, bodies) as parts:
        changed = [one_pass.run(module, context), *(one_pass.run(part, inner) for part in parts)]
    return any(changed)


def _is_body(op: ir.Operation) -> bool:
    return op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value != "main"


@contextmanager
def _apart(module: ir.Module, functions: list[ir.Operation]) -> Generator[list[ir.Module]]:
    """Moves functions into modules of their own for a while; afterwards they stand behind @main as before."""
    with module.context, ir.Location.unknown():
        parts = [ir.Module.create() for _ in functions]
        for part, function in zip(parts, functions, strict=True):
            _move(function, part)
    try:
        yield parts
    finally:
        with module.context, ir.Location.unknown():
            for part in parts:
                for op in list(part.body.operations):
                    _move(op.operation, module)


def _move(op: ir.Operation, module: ir.Module) -> None:
    op.detach_from_parent()
    ir.InsertionPoint(module.body).insert(op)
