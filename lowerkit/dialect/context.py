"""The MLIR context in which all modules are built: the upstream dialects, the torch dialects and lk."""

from __future__ import annotations

from lowerkit.dialect import load_dialect
from lowerkit.mlir import ir, passmanager, torch_dialect


def new_context() -> ir.Context:
    """Returns a context with the upstream dialects, the torch dialects and the lk dialect loaded.

    Multithreading is off: pass callbacks in Python must not be cloned over threads.
    """
    context = ir.Context()
    context.enable_multithreading(False)
    torch_dialect.register_dialect(context)
    with context, ir.Location.unknown():
        # `torch_c` is loaded only by a pass that depends on it; its ops built before that are unregistered ones.
        empty = ir.Module.create()
        passmanager.PassManager.parse("builtin.module(torch-func-backend-type-conversion)").run(empty.operation)
    load_dialect(context)
    return context


def parse_module(text: str, context: ir.Context | None = None) -> ir.Module:
    """Parses module text in ``context``, or in a new one with every dialect loaded."""
    return ir.Module.parse(text, context=context or new_context())
