"""How each op runs on the ranks of an axis, given how its operands are held: pure questions, nothing is changed.

One rule for all ops: the ranks share one loop of the op (:mod:`lowerkit.passes.shard.loops`). The loops that come into
question are those that operands are split along already, and those along which its readers want the result. Of these
the one that moves the fewest bytes is taken, and none where making all operands whole moves fewer. Types are whole ones
while rules are asked.

Bytes: what :func:`moved` counts, for each operand that changes, and twice a result of which ranks have terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lowerkit.dialect.types import element_bytes
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import element_of, shape_of, tensor_type, weight_symbol
from lowerkit.passes.shard.loops.nest import Nest
from lowerkit.passes.shard.loops.table import PRODUCTS
from lowerkit.passes.shard.shardings import WHOLE, Partial, Placed, Sharding, Split, Whole

_UNKNOWN = 64
"""An extent that is not known, where bytes are compared."""


def placed(
    op: ir.Operation,
    nest: Nest,
    given: Sequence[Sharding],
    ranks: int,
    wanted: Sequence[Sharding | None] = (),
    *,
    keeps_weight: bool = False,
) -> Placed | None:
    """Returns how an op runs that no plan names; None where nothing of it is split.

    Args:
        op: with whole types.
        nest: its loops.
        given: how its operands are held.
        ranks: how many share.
        wanted: how readers want each result; None or nothing where that is not known.
        keeps_weight: the weight of a product is to stay whole.
    """
    if all(isinstance(held, Whole) for held in given):
        return None
    best: tuple[float, Placed] | None = None
    for loop in _candidates(nest, given, wanted):
        found = nest.along(loop, ranks)
        if found is None or not _may_share(op, nest, loop, keeps_weight=keeps_weight):
            continue
        bytes_moved = _moved(op, given, found, ranks)
        if best is None or bytes_moved < best[0]:
            best = (bytes_moved, found)
    if best is None:
        return None
    whole = Placed((WHOLE,) * len(given), (WHOLE,) * len(op.results))
    return best[1] if best[0] <= _moved(op, given, whole, ranks) else None


def _candidates(nest: Nest, given: Sequence[Sharding], wanted: Sequence[Sharding | None]) -> list[int]:
    loops: dict[int, None] = {}
    for number, held in enumerate(given):
        if isinstance(held, Split) and nest.operands[number] is not None:
            loop = nest.loop_of(number, held.axis)
            if loop is not None:
                loops[loop] = None
    for number, held in enumerate(wanted):
        if isinstance(held, Split):
            loop = nest.loop_of_result(number, held.axis)
            if loop is not None:
                loops[loop] = None
    return list(loops)


def _may_share(op: ir.Operation, nest: Nest, loop: int, *, keeps_weight: bool) -> bool:
    """Whether a loop may be shared of a product whose weight no plan splits: sums over the weight may not."""
    if op.name not in PRODUCTS or weight_symbol(op.operands[1]) is None or nest.axis_in(1, loop) is None:
        return True
    return not keeps_weight and nest.loops[loop].kind == "parallel" and nest.axis_in(0, loop) is not None


def _moved(op: ir.Operation, given: Sequence[Sharding], found: Placed, ranks: int) -> float:
    """The bytes that a rank sends for an op to run so."""
    changes = {
        (operand, wanted): moved(operand, held, wanted, ranks)
        for operand, held, wanted in zip(op.operands, given, found.operands, strict=True)
        if held != wanted
    }
    terms = [moved(value, held, WHOLE, ranks) for value, held in zip(op.results, found.results, strict=True)]
    return sum(changes.values()) + sum(
        cost for cost, held in zip(terms, found.results, strict=True) if isinstance(held, Partial)
    )


def moved(value: ir.Value, held: Sharding, wanted: Sharding, ranks: int) -> float:
    """Returns the bytes that a rank sends for a value that is held in one way to be held in another one."""
    size = nbytes(value) * (ranks - 1) / ranks
    match held, wanted:
        case (Whole(), _) | (Partial(), Partial()):
            return 0.0
        case Partial(), Whole():
            return 2 * size
        case Split(), Split():
            return 0.0 if held == wanted else size / ranks
        case _:
            return size


def nbytes(value: ir.Value) -> float:
    """Returns the bytes of a value, with a guess for extents that are not known; 0 of what is no tensor."""
    if tensor_type(value) is None:
        return 0.0
    shape = shape_of(value)
    return math.prod(extent if extent >= 0 else _UNKNOWN for extent in shape) * element_bytes(element_of(value))
