"""Raises the checks that capture puts before look-ups to ``lk.check_indices``.

A checked index is an op between the index and its reader (``lowerkit.checked_indices``), so that nothing at capture can
drop it. Here it becomes an op of no result beside it, and the reader gets the index itself: the passes that follow see
what they saw without a check. Of equal checks only the first stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import CheckIndicesOp
from lowerkit.errors import PassError
from lowerkit.mlir import arith, ir, walk
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    bool_of,
    build,
    int_of,
    is_none,
    list_items,
    string_of,
    tensor_info,
    to_builtin,
    try_int,
)
from lowerkit.passes.rewriting import constant_index
from lowerkit.passes.source_location import describe, op_name

CHECKED_INDICES = "torch.lowerkit.checked_indices"


@dataclass(frozen=True)
class RaiseIndexChecks(Pass):
    """Raises every ``lowerkit.checked_indices``. Precondition: stage captured.

    Raises:
        PassError: LK3004, a check has a form that capture does not write.
    """

    name: ClassVar[str] = "raise-index-checks"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Rewrites in place."""
        found: list[ir.Operation] = []

        def collect(op: ir.Operation) -> None:
            if op_name(op) == CHECKED_INDICES:
                found.append(op)

        walk(module.operation, collect)
        known: dict[object, bool] = {}
        for op in found:
            try:
                with module.context, ir.InsertionPoint(op), op.location:
                    _raise(op, known)
            except RefusalError as reason:
                raise PassError("LK3004", f"{CHECKED_INDICES} at {describe(op)}: {reason}") from None
        return bool(found)


def _raise(op: ir.Operation, known: dict[object, bool]) -> None:
    indices, sizes, wraps, exempt, operator = op.operands
    if not tensor_info(indices).dtype.startswith("si"):
        raise RefusalError(f"indices of {tensor_info(indices)}")
    extents = list_items(sizes)
    numbers = tuple(try_int(extent) for extent in extents)
    key = indices, numbers, bool_of(wraps), None if is_none(exempt) else int_of(exempt), op.block
    if None in numbers or key not in known:
        known[key] = True
        CheckIndicesOp.build(
            to_builtin(indices),
            [
                _index(extent) if number is None else constant_index(number)
                for extent, number in zip(extents, numbers, strict=True)
            ],
            wraps=bool_of(wraps),
            exempt=None if is_none(exempt) else int_of(exempt),
            operator=string_of(operator),
        )
    assert op.results[0].type == indices.type, "a checked index is the index"
    op.results[0].replace_all_uses_with(indices)
    op.erase()


def _index(size: ir.Value) -> ir.Value:
    number = build("torch_c.to_i64", [size], [ir.IntegerType.get_signless(64)])[0]
    return arith.IndexCastOp(ir.IndexType.get(), number).result
