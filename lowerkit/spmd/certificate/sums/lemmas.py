"""Which lemma of sums in chunks an op has that is none of the program before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lowerkit.spmd.certificate.graph import Graph
from lowerkit.spmd.certificate.matching import fail
from lowerkit.spmd.certificate.moves import MOVES, moved
from lowerkit.spmd.certificate.relations import Chunk, Relation, View, canonical
from lowerkit.spmd.certificate.sums.products import MARK, PRODUCTS, Products
from lowerkit.spmd.certificate.sums.trees import Tree, added, completed
from lowerkit.spmd.certificate.values import shapes_of


@dataclass
class Sums:
    """Proves the ops by which one device makes sums of chunks.

    Attributes:
        products: of the program before.
        trees: the sums that are complete.
    """

    products: Products
    trees: list[Tree] = field(default_factory=list[Tree])

    def concerns(self, after: Graph, number: int, given: Sequence[Relation], ranks: int) -> bool:
        """Whether op ``number`` of the program after is one of these: it reads chunks, or is new and makes some."""
        op = after.ops[number]
        form = after.forms[op.form]
        if form.name == "tensor.dim":
            return False
        if any(isinstance(each, Chunk) for each in given):
            return True
        before = self.products.before
        known = 0 <= op.number < len(before.ops) and MARK in before.forms[before.ops[op.number].form].attributes
        return ranks == 1 and MARK in form.attributes and not known

    def lemma(self, after: Graph, number: int, given: Sequence[Relation]) -> tuple[str, Relation]:
        """Returns by which lemma op ``number`` of the program after is what.

        Raises:
            Unproved: it cannot be shown.
        """
        form, first = after.forms[after.ops[number].form], given[0]
        kind = after.value_types[after.results(number)[0]]
        if form.name in PRODUCTS:
            left, weight = given
            if not isinstance(left, View) or not isinstance(weight, View):
                fail("its operands are no values before")
            return "chunk", self.products.chunk(after, number, left, weight)
        if form.name in MOVES and isinstance(first, Chunk):
            both = View(first.base, (*first.index, first.first))
            *index, start = moved(form, shapes_of(after, number), both, kind, 1).index
            return "move", replace(first, index=tuple(index), first=start)
        chunk = canonical(added(form, given), kind)
        assert isinstance(chunk, Chunk), "it stays one"
        found = completed(chunk, kind, self.products.known.classes)
        if found is None:
            return "tree", chunk
        view, tree = found
        self.trees.append(tree)
        return "tree", view
