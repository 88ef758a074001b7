"""Replaces lk ops by their own lowering to linalg: for the generic family and for shapes."""

from __future__ import annotations

from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir, walk


def lower_lk_ops(module: ir.Module) -> None:
    """Replaces every lk op of ``module`` by linalg, tensor, arith, math and scf ops.

    Raises:
        UnsupportedError: LK4001, an op has no lowering to linalg.
    """
    found: list[ir.Operation] = []
    walk(module.operation, lambda op: found.append(op) if op.name.startswith("lk.") else None)
    for op in found:
        try:
            values = op.opview.to_linalg()  # type: ignore[attr-defined]
        except NotImplementedError as error:
            raise UnsupportedError("LK4001", str(error), op=op.name) from error
        for result, value in zip(op.results, values, strict=True):
            result.replace_all_uses_with(value)
        op.erase()
