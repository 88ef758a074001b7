"""States that the ranks share: each keeps a slice of one size, as long as all that is written to it is such a slice.

A state before has one type wherever it is read and written, and so has its part; where they differ in one dimension,
by the number of ranks, the state is split along it. It starts from zeros, of which each part is zeros; then each write
must be of the slice, and each read gives the slice of what the read before gives.
"""

from __future__ import annotations

from lowerkit.spmd.certificate.graph import Graph, element_of, shape_of
from lowerkit.spmd.certificate.indices import total, variable
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


def split_states(before: Graph, after: Graph, ranks: int) -> dict[str, int]:
    """Returns the dimension along which each state is split that is not whole.

    Raises:
        Unproved: a state is something else than slices.
    """
    whole, own = state_types(before), state_types(after)
    found: dict[str, int] = {}
    for symbol, kind in own.items():
        shape, part = shape_of(whole.get(symbol, "")), shape_of(kind)
        if whole.get(symbol) == kind:
            continue
        if shape is None or part is None or len(shape) != len(part) or element_of(kind) != element_of(whole[symbol]):
            fail(f"the state {symbol!r} is {kind}, before {whole.get(symbol, 'none')}")
        cut = [axis for axis, size in enumerate(shape) if part[axis] != size]
        if len(cut) != 1 or part[cut[0]] * ranks != shape[cut[0]] or part[cut[0]] <= 0:
            fail(f"the state {symbol!r} is {kind}, which is no slice of {whole[symbol]}")
        found[symbol] = cut[0]
    return found


def slice_of(base: int, kind: str, axis: int) -> Relation:
    """Returns the relation of the slice of a value, of type ``kind``, along a dimension."""
    shape = shape_of(kind) or ()
    own = element(len(shape))
    own[axis] = total((variable(RANK), shape[axis]), (own[axis], 1))
    return canonical(View(base, tuple(own)), kind)
