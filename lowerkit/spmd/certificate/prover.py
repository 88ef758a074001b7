"""Proves that the ranks along one axis of a mesh compute what the program before computes.

Vocabulary
    before, after   the program that is split along the axis, and the one that each of its ranks runs
    relation        of a value after to a value before (:mod:`.relations`)
    lemma           by which the relation of an op's results follows from those of its operands: ``alike``: all ranks
                    run it on whole operands; ``part``: it is an op before on a part (:mod:`.matching`); ``slice``,
                    ``cut``, ``row``: a weight (:mod:`.facts`); ``move``, ``take``, ``collective`` (:mod:`.moves`);
                    ``own``, ``look-up`` (:mod:`.lookups`); ``chunk``, ``tree`` (:mod:`.sums`)

Functions, the bodies of branches and loops, are proved one by one: they are given whole values, and return whole ones;
what decides about them is whole.

Steps: the values before get their classes; then the relations of the values after are derived in program order; in
the end what is returned must be whole, and effects must be the same in the same order. Nothing is assumed of an op that
no lemma fits: it is named with its line, what it was given, and what that was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from lowerkit.errors import VerifyError
from lowerkit.runtimes.expressions import Expr
from lowerkit.runtimes.mesh.structs import REDUCING
from lowerkit.spmd.certificate.effects import CHECK, Effects
from lowerkit.spmd.certificate.facts import Fact
from lowerkit.spmd.certificate.graph import Form, Graph, element_of
from lowerkit.spmd.certificate.lookups import elementwise, shared_look_up
from lowerkit.spmd.certificate.matching import Matcher, Pair, Unproved, fail
from lowerkit.spmd.certificate.meetings import Meeting, Sizes, in_order, meeting_of
from lowerkit.spmd.certificate.moves import MOVES, concatenated, met, moved, ranges_of
from lowerkit.spmd.certificate.own_data import own_weight, taken_rows
from lowerkit.spmd.certificate.proof import Proof
from lowerkit.spmd.certificate.refusals import other_result, unproved_op
from lowerkit.spmd.certificate.relations import (
    Chunk,
    Formula,
    Pending,
    Relation,
    View,
    canonical,
    extents_of,
    is_whole,
    open_extents_hold,
    render,
    whole,
)
from lowerkit.spmd.certificate.solver import Solver
from lowerkit.spmd.certificate.states import STATE_OPS, Slices, slice_of, split_states, state_types
from lowerkit.spmd.certificate.sums.lemmas import Sums
from lowerkit.spmd.certificate.sums.products import Products
from lowerkit.spmd.certificate.values import EFFECTS, read_classes, shapes_of


def prove(
    before: Graph,
    after: Graph,
    axis: str,
    ranks: int,
    facts: Iterable[Fact],
    inputs: Sequence[Sequence[Expr]] = (),
) -> Proof:
    """Proves a program of the ranks along ``axis`` against the one before.

    Args:
        before, after: see the module.
        axis: its name.
        ranks: how many ranks lie along it.
        facts: of the weights that the split makes.
        inputs: the shapes of the arguments, over the dims of a signature.

    Raises:
        VerifyError: LK3006, an op, the result or an effect cannot be proved.
    """
    known = {fact.symbol: fact for fact in facts}
    proof = _Prover(before, after, axis, ranks, known, inputs).run()
    if before.functions.keys() != after.functions.keys():
        raise VerifyError("LK3006", f"the program of the ranks along {axis!r} calls other functions")
    inner: dict[str, list[Meeting]] = {}
    for name, function in after.parts[1:]:
        own = _Prover(before.functions[name], function, axis, ranks, known, ()).run()
        inner[name] = [replace(meeting, function=name) for meeting in own.meetings]
        proof.lemmas += own.lemmas
        proof.relations += own.relations
        proof.trees += own.trees
        proof.ordered += own.ordered
        proof.asked += own.asked
    proof.meetings = in_order(after, proof.meetings, inner, after.functions)
    return proof


class _Prover:
    def __init__(
        self,
        before: Graph,
        after: Graph,
        axis: str,
        ranks: int,
        facts: Mapping[str, Fact],
        inputs: Sequence[Sequence[Expr]],
    ) -> None:
        self.before, self.after, self.axis, self.ranks, self.facts = before, after, axis, ranks, facts
        self.program = known = read_classes(before)
        self.classes, self.known, self.effects = known.classes, known.values, Effects(known.effects)
        self.sizes = Sizes(self.classes, inputs)
        self.solver = Solver()
        self.matcher = Matcher(self.classes, ranks, self.solver)
        self.sums = Sums(Products(before, known, self.solver))
        self.held: list[Relation] = []
        self.exact: set[int] = set()
        self.states: dict[str, Slices] = {}
        self.proof = Proof()

    def run(self) -> Proof:
        types = [[graph.types[kind] for kind in graph.arguments] for graph in (self.after, self.before)]
        if types[0] != types[1]:
            raise VerifyError("LK3006", f"the program of the ranks along {self.axis!r} takes other inputs")
        for number, kind in enumerate(self.after.arguments):
            own = whole(self.classes.argument(number, self.after.types[kind]), self.classes)
            self.held.append(canonical(own, self.after.types[kind]))
        try:
            self.states = split_states(self.before, self.after, self.ranks)
        except Unproved as reason:
            raise VerifyError("LK3006", f"along {self.axis!r}: {reason}") from reason
        for number in range(len(self.after.ops)):
            try:
                lemma, made = self._op(number)
                self._require_open_extents(number, made)
            except Unproved as reason:
                parts = (self.after, self.before, number, self.held, self.program, self.axis, str(reason))
                raise unproved_op(*parts) from reason
            results = self.after.results(number)
            kinds = [self.after.value_types[result] for result in results]
            self.held += [canonical(relation, kind) for relation, kind in zip(made, kinds, strict=True)]
            self.proof.lemmas.append(lemma)
            if lemma == "look-up" or (lemma == "move" and self.after.ops[number].operands[0] in self.exact):
                self.exact.update(results)
        self._require_same_end()
        self.proof.trees = self.sums.trees
        kinds = self.after.value_types
        self.proof.relations = [render(each, kind, self.classes) for each, kind in zip(self.held, kinds, strict=True)]
        self.proof.meetings = [
            self._meeting(number)
            for number, op in enumerate(self.after.ops)
            if self.after.forms[op.form].name == "lk.collective_start"
        ]
        self.proof.asked = self.solver.asked
        return self.proof

    # --- one op -------------------------------------------------------------------------------------------------------

    def _op(self, number: int) -> tuple[str, list[Relation]]:
        op = self.after.ops[number]
        form = self.after.forms[op.form]
        given = [self.held[operand] for operand in op.operands]
        kinds = [self.after.types[kind] for kind in op.results]
        if form.name == "lk.weight" and (fact := self.facts.get(form.attributes["symbol"])) is not None:
            lemma, relation = own_weight(fact, kinds[0], self.ranks, self.classes)
            return lemma, [relation]
        if form.name == "lk.collective_start" and form.attributes["axis"] == self.axis:
            return "collective", [Pending(self._met(number, form, given[0], kinds[0]))]
        if form.name == "lk.collective_done" and isinstance(given[0], Pending):
            return "collective", [given[0].then]
        if form.name in STATE_OPS and form.attributes["symbol"] in self.states:
            return "state", self._state(number, form, given)
        if self.sums.concerns(self.after, number, given, self.ranks):
            lemma, relation = self.sums.lemma(self.after, number, given)
            return lemma, [relation]
        operand_kinds = [self.after.value_types[operand] for operand in op.operands]
        if all(is_whole(each, kind, self.classes) for each, kind in zip(given, operand_kinds, strict=True)):
            return "alike", self._alike(number, form, [each.base for each in given if isinstance(each, View)], kinds)
        if op.number >= 0:
            return self._part(number, form, given)
        return self._added(number, form, given, kinds)

    def _met(self, number: int, form: Form, given: Relation, kind: str) -> View:
        if not isinstance(given, View):
            fail("its operand is no value before")
        (value,) = self.after.ops[number].operands
        operand = self.after.value_types[value]
        adds = form.attributes["kind"] in REDUCING and form.attributes["reduction"] in ("sum", "product")
        if adds and value not in self.exact and "f" in element_of(operand):
            self.proof.ordered.append(self.after.describe(number))
        return met(form, given, (operand, kind), self.ranks)

    def _alike(self, number: int, form: Form, operands: list[int], kinds: list[str]) -> list[Relation]:
        op, version = self.after.ops[number], 0
        if form.name in EFFECTS:
            self._require(self.effects.next((form, tuple(operands))))
            version = self.effects.version
        made = self.classes.computes(form, operands, kinds, version, self.after.describe(number))
        if op.number >= 0:
            before = [self.known[result] for result in self.before.results(self._there(number))]
            if made != before:
                there = self.before.ops[self._there(number)]
                others = ", ".join(f"%{self.known[operand]}" for operand in there.operands)
                fail(f"it computes {form.name} of {', '.join(f'%{o}' for o in operands)}, before of {others}")
        return [whole(each, self.classes) for each in made]

    def _part(self, number: int, form: Form, given: list[Relation]) -> tuple[str, list[Relation]]:
        if form.name == "tensor.dim":
            return "extent", [self._extent(given, number)]
        pair = Pair(self.after, self.before, number, self._there(number), given, self.known)
        if form.name in EFFECTS:
            if form.name != CHECK:
                fail("an op with effects must be run on whole operands")
            there = self.before.ops[pair.there]
            before = (self.before.forms[there.form], tuple(self.known[operand] for operand in there.operands))
            self._require(self.effects.check(before, self.matcher.stretch(pair)))
            return "part", []
        return "part", list(self.matcher.results(pair))

    def _state(self, number: int, form: Form, given: list[Relation]) -> list[Relation]:
        """A read or a write of a state of which each rank has a slice."""
        slices = self.states[str(form.attributes["symbol"])]
        kind = self.after.value_types[[*self.after.results(number), *self.after.ops[number].operands][0]]
        wanted = self.effects.following()
        if wanted is None or wanted[0] != form:
            fail("effects come in another order than before")
        _, written = wanted
        self._require(self.effects.next(wanted))
        if not written:
            whole_kind = state_types(self.before)[str(form.attributes["symbol"])]
            made = self.classes.computes(form, (), [whole_kind], self.effects.version, self.after.describe(number))
            return [slice_of(made[0], kind, slices, self.ranks)]
        if given[0] != slice_of(written[0], kind, slices, self.ranks):
            fail(f"what is written is not the slice along dimension {slices.axis} of what was")
        return []

    def _extent(self, given: list[Relation], number: int) -> View:
        """An extent of a tensor whose dimension is, from end to end, one of a value before; or a number."""
        source, axis = given
        place = self.classes.integers.get(axis.base) if isinstance(axis, View) else None
        kind = self.after.value_types[self.after.ops[number].operands[0]]
        extents = extents_of(source, kind, self.classes)
        if place is None or extents is None or place >= len(extents):
            fail("an extent of what is no value before")
        made = self.classes.extent_class(extents[place], "an extent")
        op = self.after.ops[number]
        if op.number >= 0 and made != self.known[self.before.results(self._there(number))[0]]:
            fail("it is another extent than before")
        return View(made)

    def _added(self, number: int, form: Form, given: list[Relation], kinds: list[str]) -> tuple[str, list[Relation]]:
        """An op that is none of the program before."""
        first, kind = given[0], kinds[0] if kinds else ""
        shapes = shapes_of(self.after, number)
        if form.name == "tensor.dim":
            return "extent", [self._extent(given, number)]
        if form.name in MOVES and isinstance(first, View):
            return "move", [moved(form, shapes, first, kind, self.ranks)]
        if form.name == "tensor.concat" and all(isinstance(each, View) for each in given):
            axis, views = form.attributes["dim"], [each for each in given if isinstance(each, View)]
            sizes = {shape[axis] for shape in shapes.operands}
            if len(sizes) != 1:
                fail("it joins parts of several sizes")
            return "move", [concatenated(views, axis, min(sizes))]
        if form.name == "lk.gather" and isinstance(first, View) and isinstance(given[1], Formula):
            table = extents_of(first, self.after.value_types[self.after.ops[number].operands[0]], self.classes)
            lemma, relation = taken_rows(form, first, given[1], table or (), ranges_of(kind, self.ranks))
            return lemma, [relation]
        if form.name == "linalg.generic" and any(isinstance(each, Formula) for each in given):
            operands = [self.after.value_types[operand] for operand in self.after.ops[number].operands]
            extents = [extents_of(each, own, self.classes) for each, own in zip(given, operands, strict=True)]
            made = elementwise(form, given, extents, self.classes)
            known = shared_look_up(made, self.classes, self.ranks, self.solver)
            return ("own", [made]) if known is None else ("look-up", [known])
        return fail("it has no counterpart in the program before, and runs on parts")

    # --- all of it ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _require(problem: str) -> None:
        if problem:
            fail(problem)

    def _there(self, number: int) -> int:
        there = self.after.ops[number].number
        if there >= len(self.before.ops):
            fail(f"it is said to be op {there} of {len(self.before.ops)}")
        return there

    def _require_open_extents(self, number: int, made: list[Relation]) -> None:
        for value, relation in zip(self.after.results(number), made, strict=True):
            view = relation.then if isinstance(relation, Pending) else relation
            view = view.view if isinstance(view, Chunk) else view
            if isinstance(view, View) and not open_extents_hold(view, self.after.value_types[value], self.classes):
                fail("an open dimension is not one of the value before, from end to end")

    def _meeting(self, number: int) -> Meeting:
        (operand,), (result,) = self.after.ops[number].operands, self.after.results(number)
        kinds = self.after.value_types
        sizes = [extents_of(self.held[value], kinds[value], self.classes) for value in (operand, result)]
        given, made = (None if size is None else self.sizes.count(size) for size in sizes)
        return meeting_of(self.after, number, given, made)

    def _require_same_end(self) -> None:
        if missing := self.effects.missing():
            raise VerifyError("LK3006", f"the program of the ranks along {self.axis!r} leaves out {missing}, an effect")
        if len(self.after.returned) != len(self.before.returned):
            raise VerifyError("LK3006", f"the program of the ranks along {self.axis!r} returns other results")
        for place, (value, other) in enumerate(zip(self.after.returned, self.before.returned, strict=True)):
            relation, kind = self.held[value], self.after.value_types[value]
            same = isinstance(relation, View) and relation.base == self.known[other]
            if not same or not is_whole(relation, kind, self.classes):
                raise other_result(place, relation, kind, self.known[other], self.program, self.axis)
