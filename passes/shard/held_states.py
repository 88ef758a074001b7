"""How states are held between runs: a slice on each rank where that spares bytes and costs no collective.

Vocabulary
    written   how what is written to a state is held; a value that every rank has whole is cut without a collective
    large     of a value computed from a state without a product: it has at least as many bytes

A state comes into question where all that is written to it is held in one way, in slices, or where readers want the
slices of what is written. It stays whole where a rank would have to ask the others for what it reads: where a large
value of it, or one of slices that several ranks have, is wanted in another way than it is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import captured_values
from lowerkit.passes.shard.loops.table import PRODUCTS
from lowerkit.passes.shard.rules import nbytes
from lowerkit.passes.shard.shardings import WHOLE, Sharding, Shared, Split, Whole, divides
from lowerkit.passes.shard.steps import Step

STATE_OPS = ("lk.state_read", "lk.state_write")


def state_of(op: ir.Operation) -> str:
    """Returns the name of the state that an op reads or writes."""
    return ir.StringAttr(op.attributes["symbol"]).value


def splittable(
    ops: Sequence[ir.Operation],
    held: Mapping[ir.Value, Sharding],
    wanted: Mapping[ir.Value, Split | Shared],
    ranks: int,
) -> dict[str, Split | Shared]:
    """Returns how the states that come into question would be held.

    Args:
        ops: in order.
        held: how each value is held that is not whole.
        wanted: how the readers of a value want it.
        ranks: how many share.
    """
    found: dict[str, Split | Shared | None] = {}
    for op in ops:
        if op.name == "lk.state_write":
            (value,), name = op.operands, state_of(op)
            own = held.get(value, WHOLE)
            way = wanted.get(value) if isinstance(own, Whole) else own
            if isinstance(way, Split) and not divides(value, way.axis, ranks):
                way = None
            chosen = way if isinstance(way, Split | Shared) else None
            found[name] = chosen if found.get(name, chosen) == chosen else None
    return {name: way for name, way in found.items() if way is not None}


def needed_otherwise(
    ops: Sequence[ir.Operation],
    steps: Sequence[Step],
    held: Mapping[ir.Value, Sharding],
    states: Mapping[str, Split | Shared],
) -> set[str]:
    """Returns the states that are read or written in another way than they are held.

    Args:
        ops, steps: in order; what becomes of the ops while ``states`` are held so.
        held: as for :func:`splittable`.
        states: how they are held.
    """
    found: set[str] = set()
    origins: dict[ir.Value, set[str]] = {}
    sizes: dict[str, float] = {}
    for op, step in zip(ops, steps, strict=True):
        if op.name == "lk.state_read" and state_of(op) in states:
            name = state_of(op)
            sizes[name] = nbytes(op.results[0])
            origins[op.results[0]] = {name}
            continue
        if op.name == "lk.state_write" and state_of(op) in states:
            own = held.get(op.operands[0], WHOLE)
            if own not in (WHOLE, states[state_of(op)]):
                found.add(state_of(op))
        if op.name == "tensor.dim":
            continue
        wishes = [WHOLE] * len(op.operands) if step.placed is None else list(step.placed.operands)
        read = [*zip(op.operands, wishes, strict=True), *((value, WHOLE) for value in captured_values(op))]
        names: set[str] = set()
        for value, wish in read:
            names |= origins.get(value, set())
            own = held.get(value, WHOLE)
            if value in origins and isinstance(own, Split | Shared) and own != wish:
                found |= origins[value]
        is_product = op.name in PRODUCTS or op.name == "lk.attention"
        for result in op.results:
            large = set[str]() if is_product else {name for name in names if nbytes(result) >= sizes[name]}
            origins[result] = names if isinstance(held.get(result), Shared) else large
    return found
