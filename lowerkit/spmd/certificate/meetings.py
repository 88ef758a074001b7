"""The collectives of a program in their order, as a certificate and the steps of an artifact both state them.

Why ranks do not wait in a circle, however large their messages are: :mod:`.stages` proves that the stages end where
each of them waits at every meeting, a send too, until the other side is there. That is the strictest rule: no message
is taken to be buffered. Steps begin collectives in that very order, which :mod:`.binding` compares, and each waits for
its own at its begin (``run``) or later (``done``). So take the first meeting, in the order of the proof, that is not
over: whoever takes part in it has begun all those before, which are over, and waits for none of them; it comes to this
one, and begins it. When all have, it goes on, since the runtime moves what was begun, and messages of two ranks match
in their order. What waits for a later one has begun this one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from lowerkit.runtimes.expressions import Expr, normalize, simplify
from lowerkit.runtimes.manifest import ITEM_SIZES
from lowerkit.runtimes.mesh.structs import REDUCING, WITH_ROOT
from lowerkit.spmd.certificate.graph import Graph, element_of
from lowerkit.spmd.certificate.values import Classes, Extent

_OPERATORS = {
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.floordivsi": "floordiv",
    "arith.divsi": "floordiv",
    "arith.divui": "floordiv",
    "arith.ceildivsi": "ceildiv",
    "arith.ceildivui": "ceildiv",
    "arith.remsi": "mod",
    "arith.remui": "mod",
    "arith.minsi": "min",
    "arith.maxsi": "max",
}


class Meeting(msgspec.Struct, frozen=True, omit_defaults=True):
    """A collective.

    Attributes:
        kind, axis, dtype: as the step of an artifact has them.
        reduction, root, peer: likewise.
        given, made: bytes of operand and result, over the dims of the signature; None: they cannot be said.
        place: ``file:line (in module)``.
        function: the body of a branch or a loop that it stands in.
    """

    kind: str
    axis: str
    dtype: str
    given: Any
    made: Any
    reduction: str = "sum"
    root: int = 0
    peer: int = -1
    place: str = ""
    function: str = ""

    def __post_init__(self) -> None:
        for name in ("given", "made"):
            size: Any = getattr(self, name)
            force_setattr(self, name, None if size is None else normalize(size))

    def __str__(self) -> str:
        role = f" of {self.reduction}" if self.kind in REDUCING else ""
        role += f" from {self.root}" if self.kind in WITH_ROOT else ""
        role += f" with {self.peer}" if self.peer >= 0 else ""
        return f"{self.kind}{role} along {self.axis} ({self.dtype})"


_BODIES = {"lk.cond": ("then_function", "else_function"), "lk.while": ("condition_function", "body_function")}


def in_order(
    graph: Graph, own: Sequence[Meeting], functions: Mapping[str, Sequence[Meeting]], bodies: Mapping[str, Graph]
) -> list[Meeting]:
    """Returns the collectives of a program with those of its functions where they are called, as steps are laid out.

    Args:
        graph: the program.
        own: those of its own ops.
        functions: those of each function, without the ones that it calls.
        bodies: the functions.
    """
    rest = iter(own)
    found: list[Meeting] = []
    for op in graph.ops:
        form = graph.forms[op.form]
        if form.name == "lk.collective_start":
            found.append(next(rest))
        for role in _BODIES.get(form.name, ()):
            called = form.attributes[role]
            # A function is taken out where it is entered: one that called itself would be no body.
            inner = {name: meetings for name, meetings in functions.items() if name != called}
            if called in functions:
                found += in_order(bodies[called], functions[called], inner, bodies)
    return found


class Sizes:
    """Says extents by the dims of a signature."""

    def __init__(self, classes: Classes, inputs: Sequence[Sequence[Expr]]) -> None:
        """Takes the shapes of the arguments; their classes are the first ones."""
        self._classes = classes
        self._inputs = inputs

    def count(self, extents: Sequence[Extent]) -> Expr | None:
        """Returns the product of extents; None where one of them cannot be said."""
        total: Expr = 1
        for extent in extents:
            own = self._expression(extent)
            if own is None:
                return None
            total = simplify(("mul", total, own))
        return total

    def _expression(self, extent: Extent) -> Expr | None:
        if isinstance(extent, int):
            return extent
        if len(extent) == 3:
            _, number, axis = extent
            known = number < len(self._inputs) and axis < len(self._inputs[number])
            return normalize(self._inputs[number][axis]) if known else None
        return self._value(extent[1])

    def _value(self, number: int) -> Expr | None:
        extent = self._classes.extent_of(number)
        if extent != ("is", number):
            return self._expression(extent)
        known = self._classes.computed.get(number)
        if known is None:
            return None
        form, operands = known
        operator = _OPERATORS.get(form.name)
        if operator is None or len(operands) != 2:
            return None
        left, right = map(self._value, operands)
        return None if left is None or right is None else simplify((operator, left, right))


def meeting_of(graph: Graph, number: int, given: Expr | None, made: Expr | None) -> Meeting:
    """Returns op ``number``, an ``lk.collective_start``, as a certificate states it.

    Args:
        graph, number: the op.
        given, made: elements of operand and result.
    """
    op = graph.ops[number]
    attributes = graph.forms[op.form].attributes
    dtype = element_of(graph.value_types[op.operands[0]])
    kind, size = attributes["kind"], ITEM_SIZES[dtype]
    bytes_ = [None if count is None else simplify(("mul", count, size)) for count in (given, made)]
    return Meeting(
        kind,
        attributes["axis"],
        dtype,
        bytes_[0],
        bytes_[1],
        attributes.get("reduction", "sum"),
        attributes.get("root", 0) if kind in WITH_ROOT else 0,
        attributes.get("peer", -1),
        graph.places[op.place],
    )
