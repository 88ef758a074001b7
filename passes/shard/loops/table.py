"""Which loops an op has, by its name."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.mlir import ir
from lowerkit.passes.shard.loops.nest import Nest
from lowerkit.passes.shard.loops.products import attention, conv, conv_transpose, matmul
from lowerkit.passes.shard.loops.rows import ROWS
from lowerkit.passes.shard.loops.structured import structured
from lowerkit.passes.shard.loops.views import VIEWS

PRODUCTS: dict[str, Callable[[ir.Operation], Nest]] = {
    "lk.matmul": matmul,
    "lk.integer_matmul": matmul,
    "lk.conv": conv,
    "lk.integer_conv": conv,
    "lk.conv_transpose": conv_transpose,
}
"""Products whose second operand may be a weight that a plan splits."""

TABLE: dict[str, Callable[[ir.Operation], Nest | None]] = {**PRODUCTS, "lk.attention": attention, **ROWS, **VIEWS}
"""By the name of the op; those of ``linalg`` have :func:`structured`."""

WHOLE_ONLY = frozenset({"lk.call", "lk.cond", "lk.while", "lk.region", "lk.yield", "lk.weight"})
"""Ops of the dialect that have no loops: functions that are known by name, and what is data."""


def nest_of(op: ir.Operation) -> Nest | None:
    """Returns the loops of an op; None where nothing is known of it, so that it runs whole."""
    if op.name.startswith("linalg."):
        return structured(op)
    entry = TABLE.get(op.name)
    return None if entry is None else entry(op)
