"""The lemma of an op that each rank runs on its own part: it computes its part of what the op before computes.

Vocabulary
    turn      of the loops of the op: own ones, and those of the op before
    carried   for each loop of the op before, the turn that a turn of the own loops is, over ``r`` and these loops

Steps
    1. The two ops are the same: form, element types, kinds of loops. Attributes that state sizes may differ.
    2. Each operand says which turns are carried: element ``place(turn)`` of the own operand is element
       ``view(r, place(turn))`` of the operand before, which must be its ``place(carried turn)``.
    3. All operands say the same. Parallel loops may be carried anywhere; a reduction runs over all of its turns, or
       over slices of one size, by rank; everything else runs over all of its turns.
    4. Then a result is the result before at the carried turns; the ranks' results are terms where a reduction was cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from lowerkit.spmd.certificate.effects import Stretch
from lowerkit.spmd.certificate.graph import OPEN, Form, Graph, element_of, shape_of
from lowerkit.spmd.certificate.indices import Index, equal, number, substitute, total, variable, within
from lowerkit.spmd.certificate.linear import is_linear
from lowerkit.spmd.certificate.loop_nests.nest import Nest, carried_turns, decode, single_turns
from lowerkit.spmd.certificate.loop_nests.table import LOCAL_ATTRIBUTES, nest_of
from lowerkit.spmd.certificate.relations import RANK, Relation, View, open_extents_hold
from lowerkit.spmd.certificate.solver import Solver
from lowerkit.spmd.certificate.values import Classes, shapes_of


class Unproved(Exception):
    """A lemma does not hold, or cannot be shown; the text says what."""


@dataclass(frozen=True)
class Pair:
    """An op of a rank, and the op before that it is said to be.

    Attributes:
        own, before: the programs.
        here, there: the numbers of the ops in them.
        given: how the operands of the own one are held.
        known: the classes of the values before.
    """

    own: Graph
    before: Graph
    here: int
    there: int
    given: list[Relation]
    known: list[int]


@dataclass(frozen=True)
class Matcher:
    """Proves ops of the ranks along an axis.

    Attributes:
        classes: of the values before.
        ranks: how many there are.
        solver: decides index arithmetic.
    """

    classes: Classes
    ranks: int
    solver: Solver

    def results(self, pair: Pair) -> list[View]:
        """Returns what the results of an own op are.

        Raises:
            Unproved: it cannot be shown.
        """
        form, proof = self._turns(pair)
        reduction = proof.reduction()
        linear = proof.terms(form)
        if reduction and linear:
            fail(f"terms of a {linear} are cut again along a reduction")
        return [self._result(pair, proof, which, reduction or linear) for which in range(len(proof.own.results))]

    def stretch(self, pair: Pair) -> Stretch:
        """Returns which turns of the op before the ranks together run: all, or neighbouring ones of one loop.

        Raises:
            Unproved: it cannot be shown, or they are others.
        """
        _, proof = self._turns(pair)
        cut = [name for name in proof.own.kinds if not proof.runs_whole(name)]
        if len(cut) > 1:
            fail(f"it runs a part of the turns of loops {' and '.join(cut)}")
        return Stretch() if not cut or proof.is_cut(cut[0]) else proof.stretch(cut[0])

    def _turns(self, pair: Pair) -> tuple[Form, _Turns]:
        one, other = (
            graph.forms[graph.ops[at].form] for graph, at in ((pair.own, pair.here), (pair.before, pair.there))
        )
        local = LOCAL_ATTRIBUTES.get(one.name, frozenset())
        attributes = [{k: v for k, v in form.attributes.items() if k not in local} for form in (one, other)]
        if one.name != other.name or attributes[0] != attributes[1]:
            fail(f"it is {_text(one)}, before it is {_text(other)}")
        if (one.maps, one.loops, one.body, one.captured) != (other.maps, other.loops, other.body, other.captured):
            fail("it computes something else than before")
        own, there = pair.own.ops[pair.here], pair.before.ops[pair.there]
        for values, others in ((own.operands, there.operands), (own.results, there.results)):
            if len(values) != len(others):
                fail(f"it has {len(values)} operands or results, before {len(others)}")
        types = [
            [element_of(graph.value_types[value]) for value in (*graph.ops[at].operands, *graph.results(at))]
            for graph, at in ((pair.own, pair.here), (pair.before, pair.there))
        ]
        if types[0] != types[1]:
            fail(f"its element types are {', '.join(types[0])}, before {', '.join(types[1])}")
        whole = shapes_of(pair.before, pair.there)
        nests = nest_of(one, shapes_of(pair.own, pair.here), whole), nest_of(other, whole, whole)
        if nests[0] is None or nests[1] is None or nests[0].kinds != nests[1].kinds:
            fail(f"{one.name} may run on whole operands alone")
        proof = _Turns(self, pair, nests[0], nests[1])
        proof.carry()
        return one, proof

    def _result(self, pair: Pair, proof: _Turns, which: int, terms: str) -> View:
        place, before = proof.own.results[which], proof.before.results[which]
        extents = proof.own.extents
        turns = single_turns(extents)
        ranges = {**self.element_ranges(pair.own, pair.own.results(pair.here)[which]), RANK: self.ranks}
        for axis, index in enumerate(place):
            turns.update(decode(variable(f"i{axis}"), index, extents, ranges))
        shown = tuple(substitute(substitute(index, proof.carried, proof.ranges), turns, ranges) for index in before)
        allowed = {RANK, *(f"i{axis}" for axis in range(len(place)))}
        if {name for index in shown for name in index.variables} - allowed:
            fail("which element of the result it is depends on more than its place")
        if terms and any(RANK in index.variables for index in shown):
            fail("the ranks have terms of different elements")
        result = pair.before.results(pair.there)[which]
        view = View(pair.known[result], shown, terms)
        if not open_extents_hold(view, pair.own.value_types[pair.own.results(pair.here)[which]], self.classes):
            fail("an open dimension is not what it was")
        return view

    def element_ranges(self, graph: Graph, value: int) -> dict[str, int | None]:
        """Returns the ranges of ``i0``, ``i1``, ... of a value."""
        shape = shape_of(graph.value_types[value]) or ()
        return {f"i{axis}": None if size == OPEN else size for axis, size in enumerate(shape)}


class _Turns:
    """Which turns of the loops before the turns of the own loops are."""

    def __init__(self, matcher: Matcher, pair: Pair, own: Nest, before: Nest) -> None:
        self.matcher, self.pair, self.own, self.before = matcher, pair, own, before
        self.ranges: dict[str, int | None] = {**own.ranges, RANK: matcher.ranks}
        self.carried: dict[str, Index] = {}
        self._equations: list[tuple[int, Index, Index]] = []

    def carry(self) -> None:
        """Finds the turns that each operand names, and shows that all operands name the same."""
        for operand in range(len(self.own.operands)):
            self._read(operand)
        equations = [(index, place) for _, index, place in self._equations]
        self.carried = carried_turns(equations, self.before.extents, self.ranges)
        for name in self.own.kinds:
            if name not in self.carried:
                if self.own.extents[name] != self.before.extents[name]:
                    fail("nothing tells which slice of the result it computes")
                self.carried[name] = variable(name)
        for operand, index, place in self._equations:
            wanted = substitute(place, self.carried, self.ranges)
            if not equal(index, wanted, self.ranges, self.matcher.solver):
                fail(f"operand {operand} is read at {index}, before at {wanted}, where {self._told()}")
        self._require_kinds()

    def _told(self) -> str:
        return ", ".join(f"{name} is {turn}" for name, turn in self.carried.items()) or "no loop runs"

    def _read(self, operand: int) -> None:
        """Compares an operand with that of the op before; where its elements lie says which turns are carried."""
        pair, classes = self.pair, self.matcher.classes
        relation, wanted = pair.given[operand], pair.known[pair.before.ops[pair.there].operands[operand]]
        if operand in self.own.unread:
            self._require_extents(operand)
            return
        if not isinstance(relation, View):
            fail(f"operand {operand} is no part of a value before")
        same_scalar = classes.scalars.get(relation.base, -1) == classes.scalars.get(wanted, -2)
        if relation.base != wanted and (relation.terms or not same_scalar):
            fail(
                f"operand {operand} is of {classes.names[relation.base]} (%{relation.base}), "
                f"before it is {classes.names[wanted]} (%{wanted})"
            )
        if relation.base != wanted:
            return  # one scalar, wherever it is read
        single = single_turns(self.own.extents)
        places = (substitute(index, single, self.ranges) for index in self.own.operands[operand])
        inside = {f"i{axis}": index for axis, index in enumerate(places)}
        for index, place in zip(relation.index, self.before.operands[operand], strict=True):
            self._equations.append((operand, substitute(index, inside, self.ranges), place))

    def _require_extents(self, operand: int) -> None:
        """A destination has the shape of the loops: numbers have been compared, open extents are named alike."""
        pair, classes = self.pair, self.matcher.classes
        relation, wanted = pair.given[operand], pair.known[pair.before.ops[pair.there].operands[operand]]
        if all(self.own.extents[str(atom)] != OPEN for index in self.own.operands[operand] for atom, _ in index.terms):
            return
        if not isinstance(relation, View):
            fail(f"operand {operand} has an open extent that is not known")
        before = self.pair.before.ops[pair.there].operands
        loops = Classes.loop_extents(
            self.before.operands, [classes.extents[pair.known[each]] for each in before], frozenset()
        )
        own = classes.extents[relation.base]
        if not Classes.agrees(self.before.operands[operand], own, loops):
            fail(f"operand {operand} has other open extents than {classes.names[wanted]}")

    def _require_kinds(self) -> None:
        inner = {name for name, kind in self.own.kinds.items() if kind != "parallel"}
        for name, kind in self.own.kinds.items():
            turn = self.carried[name]
            if kind == "parallel":
                if turn.variables & inner:
                    fail(f"loop {name} is carried to {turn}, which depends on what is combined")
                self._require_range(name)
            elif not self.runs_whole(name) and (kind == "opaque" or not self.is_cut(name)):
                fail(f"loop {name} ({kind}) is carried to {turn}: it must run over all that it ran over before")
            if self.own.extents[name] == OPEN and turn != variable(name):
                fail(f"an open loop is carried to {turn}")

    def _require_range(self, name: str) -> None:
        """A turn that there was not before must give an element beyond the end, as padding does, and no other one."""
        turn, extent = self.carried[name], self.before.extents[name]
        if extent in (OPEN, 0) or within(turn, extent, self.ranges, self.matcher.solver):
            return
        read = [index for place in self.before.results for index in place if name in index.variables]
        if any(index != variable(name) for index in read) or len(read) < len(self.before.results):
            fail(f"loop {name} is carried to {turn}, beyond its {extent} turns")

    def runs_whole(self, name: str) -> bool:
        """Whether each rank runs all turns of a loop."""
        same = self.own.extents[name] == self.before.extents[name]
        return same and equal(self.carried[name], variable(name), self.ranges, self.matcher.solver)

    def is_cut(self, name: str) -> bool:
        """Whether rank r runs slice r of the turns of a loop."""
        size, ranks = self.own.extents[name], self.matcher.ranks
        slices = total((variable(RANK), size), (variable(name), 1))
        whole = size > 0 and size * ranks == self.before.extents[name]
        return whole and equal(self.carried[name], slices, self.ranges, self.matcher.solver)

    def stretch(self, name: str) -> Stretch:
        """Returns the turns of a loop that all ranks run, which must be neighbours."""
        size, extent = self.own.extents[name], self.before.extents[name]
        first = total((self.carried[name], 1), (number(0) if size == 1 else variable(name), -1))
        if first.terms or OPEN in (size, extent) or not 0 <= first.constant <= extent - size:
            fail(f"loop {name} is carried to {self.carried[name]}: these are no neighbouring turns")
        return Stretch(name, first.constant, first.constant + size, extent)

    def reduction(self) -> str:
        """Returns how the ranks' results must be combined; ``""`` where each has the whole reduction."""
        cut = [
            (name, kind)
            for name, kind in self.own.kinds.items()
            if kind not in ("parallel", "opaque") and not self.runs_whole(name)
        ]
        if len(cut) > 1:
            fail("two reductions are cut along one axis")
        if not cut:
            return ""
        if any(RANK in self.carried[name].variables for name in self.own.kinds if name != cut[0][0]):
            fail("a reduction is cut, and another loop with it")
        self._require_neutral(cut[0][1])
        return cut[0][1]

    def _require_neutral(self, kind: str) -> None:
        """What the outcomes of a reduction are combined with comes from each rank: it must not count."""
        form = self.pair.own.forms[self.pair.own.ops[self.pair.here].form]
        if form.name != "linalg.generic" or kind in ("max", "min"):
            return
        first = self._scalar(len(form.maps) - 1)
        if first != {"sum": 0.0, "product": 1.0}[kind]:
            fail(f"the {kind} of each rank begins with {first}")

    def _scalar(self, operand: int) -> float:
        """Returns the constant that all elements of an operand are; NaN where they are none."""
        relation = self.pair.given[operand]
        base = relation.base if isinstance(relation, View) and not relation.terms else -1
        return self.matcher.classes.number_of(base)

    def terms(self, form: Form) -> str:
        """Returns the reduction of which operands are terms, where the op may run on terms; ``""``: there are none."""
        held = {
            operand: relation.terms
            for operand, relation in enumerate(self.pair.given)
            if isinstance(relation, View) and relation.terms and operand not in self.own.unread
        }
        if not held:
            return ""
        kinds = sorted(set(held.values()))
        if kinds != ["sum"] or not is_linear(form, set(held), len(self.pair.given), lambda at: self._scalar(at) == 0.0):
            fail(f"operand {min(held)} is terms of a {kinds[0]}, and the op does not run on terms")
        if any(RANK in turn.variables for turn in self.carried.values()):
            fail("an op on terms computes another part on each rank")
        return "sum"


def fail(text: str) -> NoReturn:
    """Raises :class:`Unproved`."""
    raise Unproved(text)


def _text(form: Form) -> str:
    shown = ", ".join(f"{name} = {value}" for name, value in form.attributes.items())
    return f"{form.name} {{{shown}}}"
