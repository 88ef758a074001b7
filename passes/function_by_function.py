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

TARGET = "lk.target"
"""The attribute of a function that belongs to an accelerator: the accelerator's name."""


def run_on_functions(one_pass: Pass, module: ir.Module, context: PassContext, target: str = "") -> bool:
    """Runs ``one_pass`` on the functions of ``target``, ``""`` for the host: ``@main`` first, then every other one.

    Returns:
        whether anything changed.
    """
    bodies = [op.operation for op in module.body.operations if _is_body(op.operation)]
    if not bodies:
        return not target and one_pass.run(module, context)
    inner = replace(context, extent_ranges={}, input_names=())  # those are of @main's arguments
    with _apart(module, bodies) as parts:
        ours = [part for part in parts if target_of(part.body.operations[0].operation) == target]
        changed = [] if target else [one_pass.run(module, context)]
        changed += [one_pass.run(part, inner) for part in ours]
    return any(changed)


def target_of(function: ir.Operation) -> str:
    """Returns the accelerator that a function belongs to, ``""`` for the host."""
    return ir.StringAttr(function.attributes[TARGET]).value if TARGET in function.attributes else ""


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
