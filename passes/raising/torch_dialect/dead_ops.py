"""Erases what raising leaves behind: ops of the torch dialect that nothing reads any more."""

from __future__ import annotations

from lowerkit.mlir import ir

_PURE = ("torch.aten.", "torch.prim", "torch.constant.", "torch_c.", "lk.weight")


def is_unused(value: ir.Value) -> bool:
    """Whether nothing reads ``value``."""
    return next(iter(value.uses), None) is None


def erase_unread(block: ir.Block) -> bool:
    """Erases ops of the torch dialect, casts and weights that nothing reads, last first; whether there were."""
    erased = False
    for op in reversed(list(block.operations)):
        operation = op.operation
        if operation.name.startswith(_PURE) and len(operation.results) and all(map(is_unused, operation.results)):
            operation.erase()
            erased = True
    return erased
