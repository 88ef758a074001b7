"""States that the ranks share: each keeps a slice of one size, as long as all that is written to it is such a slice.

A state before has one type wherever it is read and written, and so has its part; where they differ in one dimension,
the state is split along it: into as many slices as ranks, or fewer, of which neighbouring ranks have the same one. A
rank starts from its slice of what the state starts from: that is how a runtime reads it (``state_cuts`` of a program).
Then each write must be of the slice, and each read gives the slice of what the read before gives.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.spmd.certificate.graph import Graph, element_of, shape_of
from lowerkit.spmd.certificate.indices import quotient, total, variable
from lowerkit.spmd.certificate.matching import fail
from lowerkit.spmd.certificate.relations import RANK, Relation, View, canonical, element

STATE_OPS = ("lk.state_read", "lk.state_write")


def state_types(graph: Graph) -> dict[str, str]:
    """Returns the type of each state that a program uses.

    Raises:
        Unproved: it is used as two types.
    """
    found: dict[str, str] = {}
    for number, op in enumerate(graph.ops):
        form = graph.forms[op.form]
        if form.name in STATE_OPS:
            value = [*graph.results(number), *op.operands][0]
            symbol, kind = str(form.attributes["symbol"]), graph.value_types[value]
            if found.setdefault(symbol, kind) != kind:
                fail(f"the state {symbol!r} is used as {found[symbol]} and as {kind}")
    return found


@dataclass(frozen=True)
class Slices:
    """A state along ``axis`` of which each rank has one of ``parts`` slices."""

    axis: int
    parts: int


def split_states(before: Graph, after: Graph, ranks: int) -> dict[str, Slices]:
    """Returns how each state is split that is not whole.

    Raises:
        Unproved: a state is something else than slices.
    """
    whole, own = state_types(before), state_types(after)
    found: dict[str, Slices] = {}
    for symbol, kind in own.items():
        shape, part = shape_of(whole.get(symbol, "")), shape_of(kind)
        if whole.get(symbol) == kind:
            continue
        if shape is None or part is None or len(shape) != len(part) or element_of(kind) != element_of(whole[symbol]):
            fail(f"the state {symbol!r} is {kind}, before {whole.get(symbol, 'none')}")
        cut = [axis for axis, size in enumerate(shape) if part[axis] != size]
        parts = shape[cut[0]] // max(part[cut[0]], 1) if len(cut) == 1 else 0
        if parts < 2 or ranks % parts or part[cut[0]] * parts != shape[cut[0]]:
            fail(f"the state {symbol!r} is {kind}, which is no slice of {whole[symbol]} for {ranks} ranks")
        found[symbol] = Slices(cut[0], parts)
    return found


def slice_of(base: int, kind: str, slices: Slices, ranks: int) -> Relation:
    """Returns the relation of the slice of a value, of type ``kind``, that a rank has."""
    shape, axis = shape_of(kind) or (), slices.axis
    own = element(len(shape))
    part = quotient(variable(RANK), ranks // slices.parts, {RANK: ranks})
    own[axis] = total((part, shape[axis]), (own[axis], 1))
    return canonical(View(base, tuple(own)), kind)
