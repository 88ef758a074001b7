"""The lemma of a product that computes chunks of the sums of a product before.

Steps
    1. The left operand is followed through views and zeros behind an end to what a product before reads, with the same
       weight as the right one, whose chunks are known (:mod:`.chunked_weights`).
    2. Each operand says which turns of the loops before are run; all say the same (as in :mod:`..matching`). The loop
       of the sum runs over neighbouring turns; those beyond its end find zeros on both sides.
    3. So an element is the sum of these terms of an element before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.spmd.certificate.graph import OPEN, Form, Graph, element_of, shape_of
from lowerkit.spmd.certificate.indices import Index, bounds, equal, number, substitute, total, variable, within
from lowerkit.spmd.certificate.linear import pads_with_its_operand
from lowerkit.spmd.certificate.loop_nests.nest import Nest, Shapes, carried_turns, decode, single_turns
from lowerkit.spmd.certificate.loop_nests.table import nest_of
from lowerkit.spmd.certificate.matching import fail
from lowerkit.spmd.certificate.moves import MOVES, moved, ranges_of
from lowerkit.spmd.certificate.relations import Chunk, View, whole
from lowerkit.spmd.certificate.solver import Solver
from lowerkit.spmd.certificate.values import Classes, Known, shapes_of

PRODUCTS = frozenset({"lk.matmul", "lk.conv", "lk.conv_transpose"})
MARK = "lk.chunked"
"""Of a product that is said to compute chunks: a hint, and nothing else."""

_OF_SHAPES = frozenset({"groups", "transpose_lhs", "transpose_rhs", MARK})
"""Attributes that say where elements lie, which the loop nests follow, or nothing of what is computed."""


@dataclass(frozen=True)
class Products:
    """Knows the products of a program before.

    Attributes:
        before: the program.
        known: its classes.
        solver: decides index arithmetic.
    """

    before: Graph
    known: Known
    solver: Solver

    def chunk(self, after: Graph, here: int, left: View, weight: View) -> Chunk:
        """Returns which part of which sums op ``here`` of the program after computes.

        Args:
            after: the program.
            here: number of a product in it.
            left: what its left operand is.
            weight: what its right operand is, of which zeros are known behind the end of the source.

        Raises:
            Unproved: it cannot be shown.
        """
        form = after.forms[after.ops[here].form]
        types = [after.value_types[value] for value in (*after.ops[here].operands, *after.results(here))]
        zeros = False
        kind = types[0]
        while True:
            for there in self._readers(form, left.base, weight.base):
                return self._part(_Pair(after, here, there, left, weight, zeros), form, types)
            left, padded = _opened(left, kind, self.known.classes)
            zeros = zeros or padded

    def _readers(self, form: Form, left: int, weight: int) -> list[int]:
        """Returns the ops before that are such a product of two classes."""
        found: list[int] = []
        for number_, op in enumerate(self.before.ops):
            other = self.before.forms[op.form]
            if other.name == form.name and [self.known.values[value] for value in op.operands] == [left, weight]:
                pairs = ({k: v for k, v in each.attributes.items() if k not in _OF_SHAPES} for each in (form, other))
                found += [number_] if next(pairs) == next(pairs) else []
        return found

    def _part(self, pair: _Pair, form: Form, types: Sequence[str]) -> Chunk:
        own, before = (self._nest(graph, at) for graph, at in ((pair.after, pair.here), (self.before, pair.there)))
        result = self.known.values[self.before.results(pair.there)[0]]
        elements = [element_of(kind) for kind in types]
        if elements[2] not in (
            element_of(self.known.classes.types[result]),
            form.attributes["accumulate"].removeprefix("mlir:"),
        ):
            fail(f"its sums are {elements[2]}")
        carried, ranges = self._carried(own, before, pair)
        (summed,) = [name for name, kind in before.kinds.items() if kind == "sum"]
        (inner,) = [name for name, kind in own.kinds.items() if kind == "sum"]
        size, depth = own.extents[inner], before.extents[summed]
        turn = number(0) if size == 1 else variable(inner)
        first = total((carried[summed], 1), (turn, -1))
        others = [carried[name] for name in before.kinds if name != summed]
        if OPEN in (size, depth) or any(inner in index.variables for index in (first, *others)):
            fail(f"its sum runs over {carried[summed]}, which are no neighbouring terms")
        _, most = bounds(first, ranges)
        if most is None or (most + size > depth and not pair.zeros):
            fail("its sum runs beyond the one before, and what it reads there may be no zeros")
        turns = single_turns(own.extents)
        places = ranges_of(types[2], 1)
        for axis, place in enumerate(own.results[0]):
            turns.update(decode(variable(f"i{axis}"), place, own.extents, {**ranges, **places}))
        index = tuple(substitute(substitute(each, carried, ranges), turns, places) for each in before.results[0])
        first = substitute(first, turns, places)
        if {name for each in (*index, first) for name in each.variables} - places.keys():
            fail("which element of the result it is depends on more than its place")
        return Chunk(result, index, first, depth, size)

    def _carried(self, own: Nest, before: Nest, pair: _Pair) -> tuple[dict[str, Index], dict[str, int | None]]:
        """Returns which turns of the loops before the own loops run, and the ranges of the own loops."""
        ranges: dict[str, int | None] = dict(own.ranges)
        single = single_turns(own.extents)
        equations: list[tuple[Index, Index]] = []
        for view, places, others in zip((pair.left, pair.weight), own.operands, before.operands, strict=True):
            inside = {f"i{axis}": substitute(place, single, ranges) for axis, place in enumerate(places)}
            equations += [(substitute(each, inside, ranges), at) for each, at in zip(view.index, others, strict=True)]
        carried = carried_turns(equations, before.extents, ranges)
        alike = own.kinds == before.kinds
        for name, kind in before.kinds.items():
            if name not in carried and alike and own.extents[name] == before.extents[name]:
                carried[name] = variable(name)
            if name not in carried:
                fail("nothing tells which slice of the result it computes")
            turn, extent = carried[name], before.extents[name]
            if kind == "opaque" and extent != 1 and not (alike and turn == variable(name)):
                fail(f"loop {name} is carried to {turn}: it must run over all that it ran over before")
            if kind == "opaque" and alike and own.extents[name] != extent:
                fail(f"loop {name} has {own.extents[name]} turns, before {extent}")
            if kind == "parallel" and extent != OPEN and not within(turn, extent, ranges, self.solver):
                fail(f"loop {name} is carried to {turn}, beyond its {extent} turns")
        for index, place in equations:
            wanted = substitute(place, carried, ranges)
            if not equal(index, wanted, ranges, self.solver):
                fail(f"an operand is read at {index}, before at {wanted}")
        return carried, ranges

    @staticmethod
    def _nest(graph: Graph, at: int) -> Nest:
        shapes = shapes_of(graph, at)
        nest = nest_of(graph.forms[graph.ops[at].form], shapes, shapes)
        return fail("its loops cannot be followed") if nest is None else nest


@dataclass(frozen=True)
class _Pair:
    """A product, and the one before of whose sums it is said to compute parts."""

    after: Graph
    here: int
    there: int
    left: View
    weight: View
    zeros: bool


def _opened(view: View, kind: str, classes: Classes) -> tuple[View, bool]:
    """Returns a view of what a value before is a view of, and whether zeros are known behind the end of that."""
    form, operands = classes.computed.get(view.base, (None, ()))
    if form is None or not operands:
        fail("its operands are those of no product before")
    source, base_kind = operands[0], classes.types[view.base]
    shapes = Shapes(tuple(shape_of(classes.types[each]) or () for each in operands), (shape_of(base_kind) or (),))
    padded = form.name == "tensor.pad"
    if padded:
        is_zero = pads_with_its_operand(form) and classes.number_of(operands[-1]) == 0.0
        if not is_zero or any(form.attributes["static_low"]):
            fail("its left operand is padded with more than zeros behind an end")
        inner = whole(source, classes)
    elif form.name in MOVES:
        inner = moved(form, shapes, whole(source, classes), base_kind, 1)
    else:
        fail(f"its left operand is computed by {form.name}, and read by no product before")
    places = {f"i{axis}": index for axis, index in enumerate(view.index)}
    ranges = ranges_of(kind, 1)
    return View(source, tuple(substitute(index, places, ranges) for index in inner.index)), padded
